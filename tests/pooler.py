"""PgBouncer in front of a test's database, in transaction mode, with few connections to the server.

with pooled(database) as pooler:
    ... pooler.url
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests import debian
from tests.conftest import Database, wait_until
from tests.ports import free_port

SERVER_CONNECTIONS = 3


@dataclass(frozen=True)
class Pooler:
    """`url`: of the database, through it. Each transaction there may be another session's."""

    url: str
    log: Path

    def logins(self) -> int:
        """How many clients have come to it up to now."""
        return self.log.read_text(errors="replace").count("login attempt")


@contextmanager
def pooled(database: Database) -> Iterator[Pooler]:
    pgbouncer = debian.program("pgbouncer", ["pgbouncer"], "usr/sbin/pgbouncer")
    # Not below pytest's directories, which are for one user: the pooler may be another.
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        url, file = _configure(database, directory)
        log = directory / "pgbouncer.log"
        with open(log, "wb") as output:
            process = subprocess.Popen([pgbouncer, str(file)], stdout=output, stderr=output)
        try:
            wait_until(lambda: _answers(url, process, log), "PgBouncer to answer")
            yield Pooler(url, log)
        finally:
            process.terminate()
            process.wait()


def _configure(database: Database, directory: Path) -> tuple[str, Path]:
    """The URL of the database there, and its file of settings."""
    port, parts = free_port(), urlsplit(database.url)
    (directory / "users.txt").write_text(f'"{parts.username}" "{parts.password}"\n')
    settings: dict[str, object] = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "scram-sha-256",
        "auth_file": directory / "users.txt",
        "pool_mode": "transaction",
        "default_pool_size": SERVER_CONNECTIONS,
        "server_round_robin": 1,  # so that a session is not by chance the one of before
    }
    if os.geteuid() == 0:  # it refuses to be root
        settings["user"] = "nobody"
        directory.chmod(0o755)
        (directory / "users.txt").chmod(0o644)
    behind = f"host=127.0.0.1 port={database.server.port} dbname={database.name}"
    lines = ["[databases]", f"{database.name} = {behind}", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    file = directory / "pgbouncer.ini"
    file.write_text("\n".join(lines) + "\n")
    url = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))
    return url, file


def _answers(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True
