"""Calls of the Kinesis API: botocore signs, we write the body and read the answer.

boto3's own way costs a dictionary and a validation per record. Nothing is tried again here: a call that was
lost may have been carried out, and only who knows what was in it can find out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ProxyConnectionError,
)
from botocore.httpsession import URLLib3Session

from penstock.core.errors import ConfigError, TargetError
from penstock.streams.kinesis.errors import CallError
from penstock.streams.kinesis.settings import KinesisSettings

_CONNECTIONS = 64
_PIECE_BYTES = 64 * 1024
_NEVER_SENT = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)
_WITHOUT_ANSWER = frozenset({"AddTagsToStream"})  # their answers have no body
_EXPIRED = ("ExpiredToken", "UnrecognizedClient", "InvalidClientToken", "InvalidSignature", "Incomplete")


class _NotSentError(Exception):
    pass


class _Guarded:
    """A request's body, of which each piece is handed out only if it may be sent.

    A connection may be so slow that the whole takes longer than a former leader's requests are waited for:
    timeouts are of single writes. Without its last piece nothing is carried out.
    """

    def __init__(self, body: bytes, may_send: Callable[[], bool]) -> None:
        self._body = body
        self._may_send = may_send
        self.is_refused = False

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self._body), _PIECE_BYTES):
            if not self._may_send():
                self.is_refused = True
                raise _NotSentError
            yield self._body[at : at + _PIECE_BYTES]


class KinesisClient:
    """Used by all threads."""

    def __init__(self, settings: KinesisSettings) -> None:
        session = boto3.Session(region_name=settings.region)
        if session.region_name is None:
            raise ConfigError(
                "The region of the Kinesis stream is not known.",
                remedy="Set `lanes.kinesis.region` in penstock.yaml, or AWS_REGION.",
            )
        self._region: str = session.region_name
        self._stream = settings.stream
        self._url = str(session.client("kinesis", endpoint_url=settings.endpoint).meta.endpoint_url)
        timeout = (settings.connect_timeout_s, settings.request_timeout_s)
        self._http = URLLib3Session(timeout=timeout, max_pool_connections=_CONNECTIONS)
        self._credentials: Any = None
        self._lock = threading.Lock()

    def ask(self, operation: str, **arguments: Any) -> Any:
        """A call that changes nothing; raises a `TargetError`."""
        try:
            return self.call(operation, json.dumps(arguments).encode())
        except CallError as error:
            raise error.as_target_error(operation, self._stream) from error

    def call(self, operation: str, body: bytes, may_send: Callable[[], bool] = lambda: True) -> Any:
        """Raises a `CallError`, and a `TargetError` if it could not even be sent.

        `may_send` is asked before each piece of the body, the last one too, when all before it is on its way:
        without it nothing is carried out.
        """
        request = AWSRequest(
            "POST",
            self._url,
            {"X-Amz-Target": f"Kinesis_20131202.{operation}", "Content-Type": "application/x-amz-json-1.1"},
            body,
        )
        guarded = _Guarded(body, may_send)
        self._sign(request)
        prepared = request.prepare()
        prepared.body = guarded
        try:
            response = self._http.send(prepared)
            content = response.content
        except _NEVER_SENT as error:
            raise TargetError(
                f"Kinesis cannot be reached for stream {self._stream}.",
                remedy="Check the network, `lanes.kinesis.region` and `endpoint`. It is tried again.",
            ) from error
        except BotoCoreError as error:  # of whatever else, such as TLS, nobody knows how far it had come
            if guarded.is_refused:
                raise TargetError(
                    "It is not proved any more that this instance leads: nothing is sent to Kinesis.",
                    remedy="Nothing: it goes on once capture says that it leads, or another instance does.",
                ) from error
            raise CallError(type(error).__name__, is_lost=True) from error
        return self._answer(operation, response.status_code, content)

    def close(self) -> None:
        self._http.close()

    def _answer(self, operation: str, status: int, content: bytes) -> Any:
        try:
            answer = json.loads(content)
        except ValueError:
            answer = {} if not content and operation in _WITHOUT_ANSWER else None
        if status == 200 and isinstance(answer, dict):
            return answer
        if status == 200:  # cut off: what is missing of it is not nothing
            raise CallError("InvalidAnswer", is_lost=True)
        kind = answer.get("__type", "") if isinstance(answer, dict) else ""
        code = str(kind).rpartition("#")[2] or f"HTTP {status}"
        if code.startswith(_EXPIRED):
            with self._lock:
                self._credentials = None
        raise CallError(code, is_lost=not 400 <= status < 500)

    def _sign(self, request: AWSRequest) -> None:
        try:
            SigV4Auth(self._current_credentials(), "kinesis", self._region).add_auth(request)
        except (BotoCoreError, ClientError) as error:
            raise TargetError(
                "There are no AWS credentials that can be used.",
                remedy="Provide them in the environment, a credentials file or by the instance's role; they"
                " are looked for again.",
            ) from error

    def _current_credentials(self) -> Any:
        with self._lock:
            if self._credentials is None:
                self._credentials = boto3.Session(region_name=self._region).get_credentials()
            if self._credentials is None:
                raise NoCredentialsError
            return self._credentials.get_frozen_credentials()
