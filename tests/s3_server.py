"""A server that answers as S3 does (moto), in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.conftest import wait_until
from tests.ports import free_port

_HOST = "127.0.0.1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "of-a-test", "AWS_SECRET_ACCESS_KEY": "of-a-test"}


class S3Server(AbstractContextManager["S3Server"]):
    def __init__(self, log: Path) -> None:
        self._log = log
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, key: str) -> str:
        """Of an object, as the pipeline file has it; credentials are in the environment."""
        return f"s3://bucket/{key}?region=us-east-1&endpoint_override={self._url}"

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """With an empty bucket: a server that was killed has lost what it had."""
        command = [sys.executable, "-m", "moto.server", "-H", _HOST, "-p", str(self._port)]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._answers, "the S3 server to answer")
        self.files().create_dir("bucket")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def files(self) -> Any:
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region="us-east-1",
            endpoint_override=self._url,
            allow_bucket_creation=True,
        )

    @property
    def _url(self) -> str:
        return f"http://{_HOST}:{self._port}"

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            with urllib.request.urlopen(self._url, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
