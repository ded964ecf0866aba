"""A real MySQL or MariaDB with its binary log on, and what tests ask of it.

The programs come from Debian's newest packages (`debian`) and run by the loader and the libraries they were
built with. An empty data directory is made once too, and each server starts from a copy of it; it keeps its
data below `directory` and its port over restarts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from tests.conftest import wait_until
from tests.debian import LIBRARIES, made_once, run, unpacked
from tests.ports import free_port

_HOST = "127.0.0.1"
_SUITE = "sid"
_BOOTSTRAP = (
    "mariadb_system_tables.sql", "mariadb_performance_tables.sql", "mariadb_system_tables_data.sql",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """What sets the two servers apart for tests."""

    name: str
    packages: tuple[str, ...]
    program: str
    share: str
    settings: tuple[str, ...]


MYSQL = Kind(
    "mysql",
    ("mysql-server-core",),
    "usr/sbin/mysqld",
    "usr/share/mysql",
    (
        "--mysqlx=OFF",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        "--innodb-redo-log-capacity=64M",
        "--log-error-verbosity=1",
    ),
)
MARIADB = Kind(
    "mariadb",
    ("mariadb-server-core",),
    "usr/sbin/mariadbd",
    "usr/share/mariadb",
    ("--gtid-domain-id=3", "--innodb-log-file-size=16M", "--log-warnings=0"),
)


class MysqlServer(AbstractContextManager["MysqlServer"]):
    """Started by `with`, answering by then. `settings` are further options of the server's command line."""

    def __init__(self, directory: Path, kind: Kind = MYSQL, settings: Sequence[str] = ()) -> None:
        self.directory = directory
        self.kind = kind
        self.port = free_port()
        self._settings = tuple(settings)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MysqlServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        assert self._process is None
        root = _programs(self.kind)
        data = self.directory / "data"
        if not data.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            shutil.copytree(_empty_data(self.kind, root), data)
            (data / "auto.cnf").unlink(missing_ok=True)  # each server has an identity of its own
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [*_command(self.kind, root, data), *self._options()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        wait_until(self._answers, f"{self.kind.name} to answer", timeout_s=90)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._process = None
        self.start()

    def connect(self, database: str | None = None, *, tls: bool = False) -> pymysql.Connection[Any]:
        """As the superuser, in UTC, each statement committed by itself. MySQL makes itself a certificate."""
        return pymysql.connect(
            host=_HOST,
            port=self.port,
            user="root",
            database=database,
            charset="utf8mb4",
            ssl={"ca": str(self.directory / "data" / "ca.pem"), "check_hostname": False} if tls else None,
            autocommit=True,
            init_command="SET time_zone = '+00:00'",
        )

    def execute(self, *statements: str) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def position(self) -> tuple[str, int]:
        """File and offset where the next event will be written."""
        statement = "SHOW BINARY LOG STATUS" if self.kind is MYSQL else "SHOW MASTER STATUS"
        [row] = self.rows(statement)
        return str(row[0]), int(row[1])

    def purge(self) -> None:
        """Have all files of the log but the one being written gone: MariaDB keeps one until it has noticed
        that its reader has left."""
        last, _ = self.position()
        if self.kind is MARIADB:
            self.execute("SET GLOBAL slave_connections_needed_for_purge = 0")

        def is_gone() -> bool:
            self.execute(f"PURGE BINARY LOGS TO '{last}'")
            return bool(self.rows("SHOW BINARY LOGS")[0][0] == last)

        wait_until(is_gone, "binary logs to be purged")

    def _options(self) -> list[str]:
        return [
            f"--port={self.port}",
            f"--bind-address={_HOST}",
            f"--socket={self.directory / 'socket'}",
            f"--pid-file={self.directory / 'pid'}",
            "--server-id=7",
            "--log-bin=binlog",
            "--binlog-format=ROW",
            "--binlog-row-metadata=FULL",
            "--sync-binlog=0",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
            "--default-time-zone=+00:00",
            *self.kind.settings,
            *self._settings,
        ]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "server.log").read_text()[-4000:]
        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True


def _command(kind: Kind, root: Path, data: Path) -> list[str]:
    """The server by its own loader; nothing of the machine's configuration."""
    command = [
        str(root / LIBRARIES / "ld-linux-x86-64.so.2"),
        *("--library-path", f"{root / LIBRARIES}:{root / 'usr/lib'}"),
        *(str(root / kind.program), "--no-defaults"),
        f"--basedir={root / 'usr'}",
        f"--datadir={data}",
        f"--lc-messages-dir={root / kind.share}",
        f"--character-sets-dir={root / kind.share / 'charsets'}",
        f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
    ]
    if kind is MYSQL:
        command.append("--secure-file-priv=NULL")
    if os.geteuid() == 0:
        command.append("--user=root")
    return command


def _programs(kind: Kind) -> Path:
    return unpacked(kind.name, kind.packages, _SUITE)


def _empty_data(kind: Kind, root: Path) -> Path:
    made = made_once(f"{kind.name}-data", lambda directory: _initialize(kind, root, directory / "data"))
    return made / "data"


def _initialize(kind: Kind, root: Path, data: Path) -> None:
    data.mkdir()
    command = _command(kind, root, data)
    if kind is MYSQL:
        run([*command, "--initialize-insecure", "--innodb-redo-log-capacity=64M"])
        return
    (data / "mysql").mkdir()
    scripts = "".join((root / kind.share / name).read_text() for name in _BOOTSTRAP)
    run(
        [*command, "--bootstrap", "--skip-log-bin", "--max-allowed-packet=8M", "--innodb-log-file-size=16M"],
        # No root by socket: the one by password, which is empty.
        f"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n{scripts}",
    )
