"""Prepared transactions: whole at COMMIT PREPARED, and never from a slot that sends them before."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.capture.client import CaptureProcess
from penstock.core.errors import ConfigError
from penstock.core.position import Lsn
from penstock.log.reader import ChangeLog
from tests.captured import brief, log_rows, read_now
from tests.conftest import Database
from tests.integration.test_capture import spec

pytestmark = pytest.mark.integration


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    return database


def prepare(database: Database, name: str, first: int, last: int) -> None:
    with database.connect() as connection:
        connection.execute("BEGIN")
        connection.execute(f"INSERT INTO orders SELECT generate_series({first}, {last})".encode())
        connection.execute(f"PREPARE TRANSACTION '{name}'".encode())


@pytest.mark.parametrize("memory", ["64kB", "64MB"])  # streamed while it runs, or sent at its end
def test_a_prepared_transaction_is_in_the_log_when_it_has_committed_and_only_then(
    memory: str, orders: Database, tmp_path: Path
) -> None:
    orders.execute(f"ALTER DATABASE {orders.name} SET logical_decoding_work_mem = '{memory}'")
    kept, dropped = f"kept_{orders.name}", f"dropped_{orders.name}"
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        prepare(orders, kept, 1, 3000)
        prepare(orders, dropped, 5001, 8000)
        orders.execute("INSERT INTO orders VALUES (9000)")
        end = read_now(capture)
        assert capture.acknowledge("lake", end) == end, "an open PREPARE does not hold the slot's position"
    assert brief(log_rows(tmp_path), "id") == [("i", "9000")]
    with CaptureProcess(spec(orders, tmp_path)) as capture:  # the server still has what it did not send
        capture.start()
        orders.execute(f"ROLLBACK PREPARED '{dropped}'")
        orders.execute(f"COMMIT PREPARED '{kept}'")
        read_now(capture)
    rows = log_rows(tmp_path)[1:]
    assert brief(rows, "id") == [("i", str(number)) for number in range(1, 3001)]
    assert [row["_op_index"] for row in rows] == list(range(0, 6000, 2))
    assert {row["_tx"] >= end for row in rows} == {True}


def test_a_slot_made_with_two_phase_is_refused(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        end = read_now(capture)
    slot = f"slot_{orders.name}"
    orders.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    orders.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)")
    with CaptureProcess(spec(orders, tmp_path)) as capture, pytest.raises(ConfigError, match="two_phase"):
        capture.start()
    assert ChangeLog(tmp_path / "log").end() == end
    assert orders.query(
        "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
        (str(Lsn(end)), slot),
    ) == [(True,)], "the slot was left as it was found"
