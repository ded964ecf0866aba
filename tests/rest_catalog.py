"""A real REST catalog: the Iceberg project's own server over a SQLite file, and a way to it that fails.

Its jar (200 MB) comes from Maven by name, once per machine, into the directory that has our other jars.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark

from penstock.lake.iceberg_session import ivy_directory
from penstock.lake.java import ensure_java
from tests.conftest import wait_until
from tests.ports import free_port

_GROUP, _ARTIFACT, _VERSION = "org.apache.iceberg", "iceberg-open-api", "1.10.1"  # the last one with a server
_HOST = "127.0.0.1"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"


class RestCatalog(AbstractContextManager["RestCatalog"]):
    """One server; tables lie in its own warehouse below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._port}"

    def __enter__(self) -> RestCatalog:
        jar = _server_jar()
        self.directory.mkdir(parents=True)
        environment = {
            **os.environ,
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_WAREHOUSE": str(self.directory / "warehouse"),
            "CATALOG_URI": f"jdbc:sqlite:{self.directory}/catalog.db",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        }
        with open(self.directory / "server.log", "wb") as log:
            self._process = subprocess.Popen(
                [_java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(jar)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, "the REST catalog to answer")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/v1/config", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class FailingWay(AbstractContextManager["FailingWay"]):
    """A proxy before a catalog, which keeps what commits were asked for.

    While `after_commit` is set, what it returns is the status of a commit's answer, once the catalog has
    given it; for None the connection is closed instead.
    """

    def __init__(self, catalog: RestCatalog) -> None:
        self.commits: list[dict[str, Any]] = []
        self.after_commit: Callable[[], int | None] | None = None
        self._server = ThreadingHTTPServer((_HOST, 0), _handler(catalog.url, self))

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._server.server_port}"

    def __enter__(self) -> FailingWay:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(target: str, way: FailingWay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept = {key: self.headers[key] for key in ("Content-Type", "Accept") if key in self.headers}
            request = urllib.request.Request(target + self.path, body or None, kept, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    status, content = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, content = error.code, error.read()
            place = self.path.split("/")
            is_commit = self.command == "POST" and place[-2] == "tables"
            if is_commit:
                way.commits.append(json.loads(body))
            if is_commit and way.after_commit is not None:
                failure = way.after_commit()
                if failure is None:
                    self.close_connection = True
                    return
                status, content = failure, b""
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else content)

        def __getattr__(self, name: str) -> Callable[[], None]:
            if not name.startswith("do_"):
                raise AttributeError(name)
            return self.forward

        def log_message(self, format: str, *arguments: object) -> None: ...

    return Handler


def _server_jar() -> Path:
    directory = ivy_directory()
    directory.mkdir(parents=True, exist_ok=True)
    jar = directory / "jars" / f"{_GROUP}_{_ARTIFACT}-{_VERSION}.jar"
    with open(directory / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as Spark's start takes it for the jars of a session
        if not jar.exists():
            _download(directory)
    assert jar.exists(), f"Maven has no {jar.name}"
    return jar


def _download(directory: Path) -> None:
    """By the Ivy that Spark brings along."""
    [ivy] = _SPARK_JARS.glob("ivy-*.jar")
    pattern = directory / "jars" / "[organization]_[artifact]-[revision].[ext]"
    subprocess.run(
        [
            *(_java(), "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(directory / "cache")),
            *("-dependency", _GROUP, _ARTIFACT, _VERSION, "-types", "jar", "-retrieve", str(pattern)),
        ],
        check=True,
        capture_output=True,
        timeout=600,
    )


def _java() -> str:
    ensure_java()
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
