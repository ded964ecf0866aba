"""A real Postgres of our own, for the demo and the tests.

`with EmbeddedPostgres() as server:` makes a cluster in a temporary directory, starts it on a free
port of 127.0.0.1 with `wal_level=logical`, and leaves nothing behind: neither processes nor files.

- The server is *ready* when its own `postmaster.pid` says so, not when a port answers: two starts
  that picked the same port must not take each other's server for their own. The one that finds the
  port taken picks another.
- It ends with its parent, however that one ends (`embedded_process`).
- It asks for a password, made at random, since other users of a machine reach 127.0.0.1 too.
- `fsync` is off unless the settings say otherwise: this server may lose data when the machine loses
  power, never when a process is killed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from penstock.core.errors import SourceError
from penstock.sources.postgres.embedded_binaries import programs_for, server_user
from penstock.sources.postgres.embedded_process import ServerProcess

DEFAULT_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_prepared_transactions": "10",
    "max_connections": "100",
    "fsync": "off",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "log_line_prefix": "%m [%p] %d ",
    "timezone": "UTC",
}

START_TIMEOUT_S = 60.0
_PORTS = range(15000, 32000)  # below the range that outgoing connections are given
_SOCKET_PATH_BYTES_MAX = 90  # the kernel's limit is 107, of which Postgres needs some for the name
_POLL_S = 0.02


class EmbeddedPostgres:
    """One server. `directory=None` means a temporary one, removed by `close`."""

    def __init__(
        self,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        password: str | None = None,
    ) -> None:
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.port = 0
        self.password = password or ""
        self._user = server_user()
        self._programs: Path | None = None
        self._process: ServerProcess | None = None
        self._socket_directory: Path | None = None

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Make the cluster if there is none, start it, and return when it accepts connections."""
        if self.running:
            return
        self._prepare_directory()
        if not (self.data / "PG_VERSION").exists():
            self._initialize()
        self._read_password()
        self._write_settings()
        keep_port = self.port != 0  # whoever holds our URL must find us again after a restart
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            port = self.port if keep_port else _free_port()
            if self._start_on(port, deadline):
                self.port = port
                return
            if time.monotonic() > deadline or not self._may_retry():
                raise self._start_error()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Shut down in order: connections are ended, the state is written out, then it exits."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash would: no checkpoint, and recovery from the log at the next start."""
        self._end(signal.SIGQUIT)

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Stop and start on the same port, with further settings if given."""
        self.stop()
        self.settings.update(settings or {})
        self.start()

    def close(self) -> None:
        """Stop, and remove what was temporary."""
        if self._temporary:
            self._end(signal.SIGQUIT)  # nobody will read these files again
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            self.stop()
        if self._socket_directory is not None and self._socket_directory != self.directory:
            shutil.rmtree(self._socket_directory, ignore_errors=True)
        self._socket_directory = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    # -- use ----------------------------------------------------------------------------------

    def url(self, database: str = "postgres", *, user: str = "postgres", password: str | None = None) -> str:
        secret = self.password if password is None else password
        login = f"{quote(user, safe='')}:{quote(secret, safe='')}"
        return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def bin(self, name: str) -> Path:
        """The path of a program: psql, pg_recvlogical, pg_dump and so on."""
        if self._programs is None:
            self._programs = programs_for(self._user, self.directory / "programs")
        path = self._programs / name
        if not path.exists():
            raise SourceError(
                f"The embedded Postgres has no program {name}.",
                remedy=f"Programs that are there are listed in {self._programs}.",
            )
        return path

    @classmethod
    def standby_of(
        cls, primary: EmbeddedPostgres, name: str = "standby", settings: Mapping[str, str] | None = None
    ) -> EmbeddedPostgres:
        """A streaming standby, not yet started, that `synchronous_standby_names` may list as `name`."""
        standby = cls(settings={**(settings or {}), "cluster_name": name}, password=primary.password)
        standby._prepare_directory()
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name={name}"
        try:
            standby._run(
                "pg_basebackup", "-d", source, "-D", str(standby.data),
                "-R", "-X", "stream", "-c", "fast", "--no-sync",
            )  # fmt: skip
        except BaseException:
            standby.close()
            raise
        return standby

    # -- parts --------------------------------------------------------------------------------

    def _prepare_directory(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._user.own(self.directory)
        if not self._temporary:
            self._require_reachable()
        if self._socket_directory is None:
            if len(os.fsencode(self.directory)) <= _SOCKET_PATH_BYTES_MAX:
                self._socket_directory = self.directory
            else:
                self._socket_directory = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
                self._user.own(self._socket_directory)

    def _require_reachable(self) -> None:
        probe = subprocess.run(
            ["/bin/sh", "-c", 'cd "$1" && test -w .', "sh", str(self.directory.absolute())],
            check=False,
            cwd="/",
            stderr=subprocess.DEVNULL,
            **self._user.process_arguments(),
        )
        if probe.returncode != 0:
            raise SourceError(
                f"The embedded Postgres cannot use {self.directory}: as root it runs as another user, "
                "who may not enter a directory above it.",
                remedy="Choose a directory below one that every user may enter, for instance in /tmp, "
                "or run this command as an ordinary user.",
            )

    def _initialize(self) -> None:
        password = self.password or secrets.token_urlsafe(18)
        password_file = self.directory / "password"
        with open(os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(password + "\n")
        self._user.own(password_file)
        self._run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync",
            "--no-instructions", "--auth=scram-sha-256", f"--pwfile={password_file}",
        )  # fmt: skip

    def _read_password(self) -> None:
        password_file = self.directory / "password"
        if not self.password and password_file.exists():
            self.password = password_file.read_text().rstrip("\n")

    def _write_settings(self) -> None:
        """In a file of their own, so that ALTER SYSTEM and a test's own lines still win over them."""
        escaped = {name: value.replace("'", "''") for name, value in self.settings.items()}
        lines = [f"{name} = '{value}'\n" for name, value in escaped.items()]
        own = self.data / "penstock.conf"
        own.write_text("".join(lines))
        own.chmod(0o644)
        main = self.data / "postgresql.conf"
        include = "include_if_exists = 'penstock.conf'\n"
        if include not in main.read_text():
            with open(main, "a") as file:
                file.write(include)

    def _start_on(self, port: int, deadline: float) -> bool:
        """Whether the server became ready on this port; if not, it is not running any more."""
        arguments = [
            str(self.bin("postgres")), "-D", str(self.data.absolute()),
            "-c", f"port={port}", "-c", "listen_addresses=127.0.0.1",
            "-c", f"unix_socket_directories={self._socket_directory}",
        ]  # fmt: skip
        process = ServerProcess(
            arguments,
            self._environment(),
            self._user,
            log=self.log,
            pid_file=self.data / "postmaster.pid",
            remove_with_parent=self.directory if self._temporary else None,
        )
        while process.running and not process.ready and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if process.running and process.ready:
            self._process = process
            return True
        process.end(signal.SIGQUIT)
        return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(how)

    def _may_retry(self) -> bool:
        log = self._log_text()
        return "could not bind" in log or "pre-existing shared memory block" in log or "lock file" in log

    def _start_error(self) -> SourceError:
        last_lines = "\n".join(self._log_text().splitlines()[-5:])
        return SourceError(
            "The embedded Postgres did not start.",
            detail=last_lines,
            remedy=f"Read {self.log}, or free the directory {self.directory} if another server uses it.",
        )

    def _log_text(self) -> str:
        try:
            return self.log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.bin(name)), *arguments],
            check=False,
            cwd="/",
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **self._user.process_arguments(),
        )
        if done.returncode != 0:
            raise SourceError(
                f"{name} of the embedded Postgres failed.",
                detail="\n".join(done.stdout.decode(errors="replace").splitlines()[-5:]),
                remedy=f"Check that {self.directory} has free space and may be written to.",
            )

    def _environment(self) -> dict[str, str]:
        # The password goes by the environment: other users of the machine can read arguments.
        own = {"HOME": str(self.directory), "PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
        return {**own, "PGPASSWORD": self.password} if self.password else own


def _free_port() -> int:
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
