"""A schema registry, as Confluent's is asked: schemas by subject, records by id.

A record begins with a zero byte and its schema's id in four bytes. The subject is the topic with `-key` or
`-value` behind it. A schema is registered when a table's version is first met, before any record of it; the
registry knows it if it had it before. Whether a new version may follow the old ones is the registry's to say
(its compatibility setting): what it refuses stops the lane, since no record of it could be read.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import structlog
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from penstock.core.errors import SchemaRefusedError, TargetError
from penstock.streams.encoding.settings import RegistrySettings

SchemaKind: TypeAlias = Literal["AVRO", "PROTOBUF"]

_REFUSED = (409, 422)
_NOT_FOUND = 404
_TIMEOUT_S = 30
_log = structlog.get_logger(__name__)


class Registry:
    def __init__(self, settings: RegistrySettings) -> None:
        given: dict[str, object] = {"url": settings.url, "timeout": _TIMEOUT_S, "max.retries": 1}
        if settings.username:
            given["basic.auth.user.info"] = f"{settings.username}:{settings.password}"
        if settings.ca:
            given["ssl.ca.location"] = settings.ca
        self._client = SchemaRegistryClient(given)

    def header(self, subject: str, schema: str, kind: SchemaKind) -> bytes:
        """What records of this schema begin with; registers it, if it is new."""
        try:
            number = self._client.register_schema(subject, Schema(schema, kind))
        except Exception as error:
            raise _told(error, subject) from error
        _log.info("schema registered", subject=subject, id=number)
        return b"\0" + number.to_bytes(4, "big")

    def latest(self, subject: str) -> str:
        """The schema that was registered last; empty: none was."""
        self._client.clear_latest_caches()  # type: ignore[no-untyped-call]
        try:
            found = self._client.get_latest_version(subject)
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return ""
            raise _told(error, subject) from error
        except Exception as error:
            raise _told(error, subject) from error
        return found.schema.schema_str or ""


def _told(error: Exception, subject: str) -> TargetError | SchemaRefusedError:
    if isinstance(error, SchemaRegistryError) and error.http_status_code in _REFUSED:
        return SchemaRefusedError(
            f"The schema registry refuses the table's schema as the next version of {subject}.",
            detail=error.error_message,
            remedy="Set the subject's compatibility so that the change is allowed, or undo the change of the "
            "table; then `penstock lane resume`.",
        )
    status = f" (HTTP {error.http_status_code})" if isinstance(error, SchemaRegistryError) else ""
    return TargetError(
        f"The schema registry could not be asked about {subject}{status}.",
        remedy="Look whether it runs and whether `schema_registry` has the right address and password.",
    )
