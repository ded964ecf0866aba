"""The embedded Postgres: starts anywhere, ends with us, leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.core.errors import SourceError
from penstock.sources.postgres import embedded, embedded_binaries
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, wait_until, with_password

pytestmark = pytest.mark.integration

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to hand the server to another user")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users may enter (pytest's own may not be)."""
    path = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def value(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_server_has_a_logical_log_and_room_for_slots(server: EmbeddedPostgres) -> None:
    assert value(server.url(), "SHOW wal_level") == "logical"
    assert value(server.url(), "SELECT current_setting('max_replication_slots')::int >= 20") is True
    assert value(server.url(), "SELECT current_setting('max_wal_senders')::int >= 20") is True


def test_programs_of_the_wheel_are_found_and_unknown_ones_are_named(server: EmbeddedPostgres) -> None:
    assert os.access(server.bin("pg_recvlogical"), os.X_OK)
    with pytest.raises(SourceError, match="no program pg_nothing"):
        server.bin("pg_nothing")


def test_a_wrong_password_is_refused(database: Database) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(with_password(database.url, "wrong"))


def test_two_servers_run_side_by_side_with_settings_of_their_own(server: EmbeddedPostgres) -> None:
    with EmbeddedPostgres(settings={"wal_level": "replica", "application_name": "it's"}) as other:
        assert other.port != server.port
        assert value(other.url(), "SHOW wal_level") == "replica"
        assert value(server.url(), "SHOW wal_level") == "logical"


def test_rows_survive_a_restart_and_a_crash_on_the_same_url() -> None:
    with EmbeddedPostgres() as server:
        url = server.url()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
        server.restart({"work_mem": "5MB"})
        assert value(url, "SHOW work_mem") == "5MB"
        server.kill()
        assert not server.running
        server.start()
        assert value(url, "SELECT id FROM kept") == 1


def test_close_leaves_neither_processes_nor_files() -> None:
    server = EmbeddedPostgres()
    with server:
        pid = int((server.data / "postmaster.pid").read_text().splitlines()[0])
        assert alive(pid)
    assert not alive(pid)
    assert not server.directory.exists()


def test_a_port_taken_by_another_leads_to_a_further_try(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[int] = []
    choose = embedded._free_port

    def taken_first() -> int:
        offered.append(choose() if offered else server.port)
        return offered[-1]

    monkeypatch.setattr(embedded, "_free_port", taken_first)
    with EmbeddedPostgres() as other:
        assert offered[0] == server.port
        assert other.port == offered[1]
        assert value(other.url(), "SELECT 1") == 1


def test_the_server_ends_when_its_parent_is_killed() -> None:
    script = (
        "import json, sys\n"
        "from penstock.sources.postgres.embedded import EmbeddedPostgres\n"
        "server = EmbeddedPostgres()\n"
        "server.start()\n"
        "pid = (server.data / 'postmaster.pid').read_text().splitlines()[0]\n"
        "print(json.dumps({'pid': int(pid), 'directory': str(server.directory)}), flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    with parent:
        assert parent.stdout is not None
        started = json.loads(parent.stdout.readline())
        assert alive(started["pid"])
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(started["pid"]), "the server to end with its parent")
    wait_until(lambda: not Path(started["directory"]).exists(), "its directory to be removed")


def test_a_directory_given_by_name_keeps_its_data_and_password(open_directory: Path) -> None:
    home = open_directory / "a" / "server"
    with EmbeddedPostgres(home) as first:
        password = first.password
        with psycopg.connect(first.url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS id")
    with EmbeddedPostgres(home) as second:
        assert second.password == password
        assert value(second.url(), "SELECT id FROM kept") == 7


def test_a_long_directory_name_is_no_problem_for_the_socket(open_directory: Path) -> None:
    with EmbeddedPostgres(open_directory / ("long" * 25)) as server:
        assert value(server.url(), "SELECT 1") == 1


@as_root
def test_a_directory_the_server_cannot_enter_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(SourceError, match="may not enter") as raised:
        EmbeddedPostgres(closed / "server").start()
    assert "every user may enter" in raised.value.remedy


@as_root
def test_an_environment_below_a_closed_directory_still_starts_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = embedded_binaries.find_programs()
    package = programs.parent.parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    shutil.copytree(package / "pginstall", closed / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, closed / libraries.name)
    hidden = closed / package.name / "pginstall" / "bin"
    monkeypatch.setattr(embedded_binaries, "find_programs", lambda: hidden)
    with EmbeddedPostgres() as server:
        assert server.bin("psql").is_relative_to(server.directory)
        done = subprocess.run(
            [str(server.bin("psql")), server.url(), "-Atc", "SELECT 6 * 7"], capture_output=True, check=True
        )
        assert done.stdout.strip() == b"42"


@as_root
def test_an_ordinary_user_starts_a_server_too() -> None:
    """In a fork that has given up root: the interpreter itself may lie where other users cannot read."""
    user = embedded_binaries.server_user()
    assert user.uid is not None
    assert user.gid is not None
    if not embedded_binaries._can_execute(embedded_binaries.find_programs() / "postgres", user):
        pytest.skip("the environment lies in a directory that other users may not read")
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user.gid)
            os.setuid(user.uid)
            with EmbeddedPostgres() as server:
                answer = value(server.url(), "SELECT 6 * 7")
            os._exit(0 if answer == 42 and not server.directory.exists() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_missing_wheel_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="not installed") as raised, EmbeddedPostgres():
        pass
    assert "pip install" in raised.value.remedy


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(SourceError, match="did not start") as raised,
        EmbeddedPostgres(settings={"no_such_setting": "1"}),
    ):
        pass
    assert "no_such_setting" in raised.value.detail


def test_a_standby_follows_its_primary() -> None:
    with EmbeddedPostgres() as primary, EmbeddedPostgres.standby_of(primary, "second") as standby:
        with psycopg.connect(primary.url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE followed AS SELECT 3 AS id")
        wait_until(
            lambda: value(standby.url(), "SELECT to_regclass('followed') IS NOT NULL") is True,
            "the table to arrive at the standby",
        )
        assert value(standby.url(), "SELECT pg_is_in_recovery()") is True
        assert value(primary.url(), "SELECT application_name FROM pg_stat_replication") == "second"
