"""Always-on capture: term after term, whatever happens to the source, the connections or the leader.

Spark is not needed: what is in the change log is compared with what was written to the source.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock import metrics
from penstock.capture.leadership import PATIENCE_VARIABLE
from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import CaptureSpec
from penstock.core.errors import CaptureAwayError, PositionGoneError, SourceBusyError, SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.lanes import LaneRegistry
from penstock.log.reader import ChangeLog
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres
from penstock.sources.postgres.replication import ReplicationStream
from tests.always import QUICK_HEARTBEAT_S, AlwaysOn, always_spec, ids
from tests.capture_specs import slot_of
from tests.captured import log_rows
from tests.conftest import Database, wait_until

pytestmark = pytest.mark.integration

_TAKE_OVER_S = (
    15.0  # 5 s alone on the machine, which `test_failover` measures; others are at work on this one
)


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    return database


@pytest.fixture
def own() -> Iterator[Database]:
    """A server that a test may stop."""
    with EmbeddedPostgres() as server:
        database = Database("postgres", server)
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        yield database


@contextmanager
def writing(database: Database) -> Iterator[list[int]]:
    """Somebody writes all the while; what is committed for certain is in the list, in its order."""
    written: list[int] = []
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            try:
                database.execute("INSERT INTO orders VALUES (%s)", (number,))
            except Exception:
                # The answer was lost, not the question: whether it was committed is looked up.
                if not _holds(database, number, over):
                    continue
            written.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        over.set()
        writer.join()


def wait_for_more(written: list[int]) -> None:
    before = len(written)
    wait_until(lambda: len(written) > before + 20, "rows to be written")


def _holds(database: Database, number: int, over: threading.Event) -> bool:
    while True:
        try:
            return bool(database.query("SELECT 1 FROM orders WHERE id = %s", (number,)))
        except Exception:
            if over.wait(0.05):
                return False


def backends(database: Database, application: str) -> list[int]:
    found = database.query(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = %s",
        (application, database.name),
    )
    return [row[0] for row in found]


def test_changes_are_in_the_log_soon_without_being_asked_for(orders: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        started = always.join()
        assert started.slot_created
        orders.execute("INSERT INTO orders VALUES (1), (2)")
        wait_until(lambda: ChangeLog(tmp_path / "log").end() is not None, "a step to be sealed")
        wait_until(lambda: ids(log_rows(tmp_path)) == [1, 2], "the rows to be in the log")
        assert ChangeLog(tmp_path / "log").manifests()[-1].epoch == started.epoch
        end = always.read_now()
        progress = always.capture.progress()
        assert progress.log_end >= end
        assert (progress.rows, progress.transactions) == (2, 1)
        assert always.stop() == 0
    assert always.states[-1] == "stopping"
    assert not backends(orders, "penstock-lock")


def test_a_stop_seals_and_acknowledges_what_has_come(orders: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(orders, tmp_path, seal_every_s=3600.0)) as always:
        always.join()
        orders.execute("INSERT INTO orders VALUES (1)")
        wait_until(lambda: always.capture.progress().rows == 1, "the row to come")
        end = always.read_now()
        always.capture.acknowledge("lake", end)
        orders.execute("INSERT INTO orders VALUES (2)")
        wait_until(lambda: always.capture.progress().rows == 2, "the second row to come")
        assert ids(log_rows(tmp_path)) == [1]
        assert always.stop() == 0
    assert ids(log_rows(tmp_path)) == [1, 2]
    slot = orders.query(
        "SELECT confirmed_flush_lsn::text, active FROM pg_replication_slots WHERE database = %s",
        (orders.name,),
    )
    assert slot == [(str(end), False)]
    assert LaneRegistry(tmp_path / "lanes.json").positions() == {"lake": end}


@pytest.mark.slow
@pytest.mark.parametrize("application", ["penstock-capture", "penstock-lock", "penstock-control"])
def test_a_session_that_is_ended_costs_nothing(application: str, orders: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(orders, tmp_path, heartbeat_s=QUICK_HEARTBEAT_S)) as always:
        epoch = always.join().epoch
        with writing(orders) as written:
            for _ in range(2):
                terms = _terms(always)
                wait_for_more(written)
                ended = backends(orders, application)
                assert ended
                for pid in ended:
                    orders.query("SELECT pg_terminate_backend(%s)", (pid,))
                if application != "penstock-control":
                    _wait_for_another_term(always, terms)
                always.read_now()
        always.read_now()
        assert ids(log_rows(tmp_path)) == written
        epochs = [manifest.epoch for manifest in ChangeLog(tmp_path / "log").manifests()]
        assert epochs == sorted(epochs)
        if application != "penstock-control":
            assert always.join().epoch > epoch


def _terms(always: AlwaysOn) -> int:
    return always.states.count("reconnecting")


def _wait_for_another_term(always: AlwaysOn, before: int) -> None:
    wait_until(lambda: _terms(always) > before, "another term")


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_of_the_server_costs_nothing(how: str, own: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(own, tmp_path, heartbeat_s=QUICK_HEARTBEAT_S)) as always:
        always.join()
        with writing(own) as written:
            wait_for_more(written)
            getattr(own.server, how)()
            wait_until(lambda: always.state == "reconnecting", "capture to notice")
            with pytest.raises(CaptureAwayError):
                always.capture.note_target()
            own.server.start()
            wait_for_more(written)
        always.read_now()
        assert ids(log_rows(tmp_path)) == written
        assert always.metric(metrics.RECONNECTS.name) is not None


@contextmanager
def standing_by(spec: CaptureSpec, leader: AlwaysOn) -> Iterator[AlwaysOn]:
    """A second one, once the first one leads and is joined."""
    leader.join()
    with AlwaysOn(spec) as standby:
        wait_until(lambda: standby.state == "standby", "the second one to stand by")
        yield standby


def test_a_standby_takes_over_from_one_that_was_killed(orders: Database, tmp_path: Path) -> None:
    spec = always_spec(orders, tmp_path, heartbeat_s=QUICK_HEARTBEAT_S)
    with AlwaysOn(spec) as leader, standing_by(spec, leader) as standby:
        with writing(orders) as written:
            wait_for_more(written)
            leader.process.kill()
            killed = time.monotonic()
            standby.join()
            taken_s = time.monotonic() - killed
            print(f"took over after {taken_s:.2f} s")
            assert taken_s < _TAKE_OVER_S
            wait_for_more(written)
        standby.read_now()
        assert ids(log_rows(tmp_path)) == written


@pytest.mark.parametrize(
    "shared", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["shared state", "own state"]
)
def test_a_leader_that_is_stopped_is_replaced_and_does_no_harm_when_it_wakes(
    shared: bool, orders: Database, tmp_path: Path
) -> None:
    states = [tmp_path / "state", tmp_path / ("state" if shared else "other")]
    specs = [always_spec(orders, state, heartbeat_s=QUICK_HEARTBEAT_S) for state in states]
    with AlwaysOn(specs[0]) as leader, standing_by(specs[1], leader) as standby:
        old = leader.capture.epoch
        assert old is not None
        with writing(orders) as written:
            wait_for_more(written)
            leader.process.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            new = standby.join()
            taken_s = time.monotonic() - stopped
            print(f"took over after {taken_s:.2f} s")
            assert taken_s < _TAKE_OVER_S
            assert new.epoch > old
            standby.read_now()
            sealed = _epochs(states[0]).count(old)
            leader.process.send_signal(signal.SIGCONT)
            wait_until(lambda: leader.state == "standby", "the woken one to stand by")
            with pytest.raises(CaptureAwayError):
                leader.capture.note_target()
            wait_for_more(written)
        standby.read_now()
        # Stopped between its last look at the lease and the commit, it has made that one step true of its
        # own log. Of a shared log the number is taken.
        assert _epochs(states[0]).count(old) - sealed <= (0 if shared else 1), "what woke has sealed no more"
        assert _epochs(states[1]) == sorted(_epochs(states[1]))
        assert ids(log_rows(states[1])) == written
        seen = ids(log_rows(states[0])) if _epochs(states[0]) else []
        assert seen == written[: len(seen)]


def _epochs(state: Path) -> list[Lsn]:
    return [manifest.epoch for manifest in ChangeLog(state / "log").manifests()]


@pytest.mark.slow
def test_a_lane_that_is_not_there_holds_the_source_until_it_is_dropped(
    orders: Database, tmp_path: Path
) -> None:
    with AlwaysOn(always_spec(orders, tmp_path, lanes={}), lane="kafka") as always:
        always.join()
        end = always.read_now()
        always.capture.acknowledge("kafka", end)
        wait_until(lambda: always.capture.progress().acknowledged == end, "the source to be told")
        assert always.stop() == 0
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        always.join()
        orders.execute("INSERT INTO orders VALUES (1)")
        later = always.read_now()
        always.capture.acknowledge("lake", later)
        standing = {each.lane: each for each in always.capture.lanes()}
        assert (standing["kafka"].position, standing["kafka"].configured) == (end, False)
        assert (standing["lake"].position, standing["lake"].configured) == (later, True)
        lag = standing["kafka"].lag_bytes
        assert lag is not None
        assert lag >= later - end
        assert always.capture.progress().acknowledged == end
        always.capture.drop_lane("kafka")
        wait_until(lambda: always.capture.progress().acknowledged == later, "the source to be told")
        assert [each.lane for each in always.capture.lanes()] == ["lake"]
        assert always.stop() == 0
    assert LaneRegistry(tmp_path / "lanes.json").positions() == {"lake": later}


def test_a_configured_lane_that_was_dropped_holds_no_later_term(orders: Database, tmp_path: Path) -> None:
    spec = always_spec(orders, tmp_path, lanes={"lake": None, "kafka": None})
    with AlwaysOn(spec) as always, RemoteCapture(always.capture.address, "kafka") as kafka:
        always.join()
        kafka.join([StreamId("public", "orders")])
        held = always.read_now()
        kafka.acknowledge("kafka", held)
        always.capture.drop_lane("kafka")
        assert {each.lane: each.dropped for each in always.capture.lanes()} == {"kafka": True, "lake": False}
        assert always.stop() == 0
    with AlwaysOn(spec) as always, RemoteCapture(always.capture.address, "kafka") as kafka:
        for _ in range(2):
            epoch = always.join().epoch
            orders.execute("INSERT INTO orders SELECT coalesce(max(id), 0) + 1 FROM orders")
            later = always.read_now()
            always.capture.acknowledge("lake", later)
            wait_until(lambda: always.capture.progress().acknowledged >= later, "the source to be told")  # noqa: B023
            always.capture.start_over()
            wait_until(lambda: always.join().epoch > epoch, "another term")  # noqa: B023
        kafka.join([StreamId("public", "orders")])
        assert {each.lane: each.dropped for each in always.capture.lanes()} == {"kafka": False, "lake": False}
        orders.execute("INSERT INTO orders SELECT max(id) + 1 FROM orders")
        end = always.read_now()
        always.capture.acknowledge("lake", end)
        assert always.capture.progress().acknowledged < end, "it came again, and counts"


@pytest.mark.slow
def test_reading_goes_on_for_a_lane_that_is_down_and_holds_the_source_for_it(
    orders: Database, tmp_path: Path
) -> None:
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        always.join()
        held = always.read_now()
        always.capture.acknowledge("lake", held)
        assert always.stop() == 0
    orders.execute("INSERT INTO orders VALUES (1)")
    with AlwaysOn(always_spec(orders, tmp_path, heartbeat_s=QUICK_HEARTBEAT_S)) as always:
        wait_until(always.leads, "it to lead")
        assert not always.capture.hello().reading
        wait_until(lambda: ids(log_rows(tmp_path)) == [1], "the row to be in the log without the lane")
        assert always.capture.hello().reading
        assert Lsn.parse(always.capture.status()["acknowledged"]) == held
        orders.execute("INSERT INTO orders VALUES (2)")
        started = always.join()
        assert (started.published, started.slot_created) == ((), False)
        always.read_now()
        always.capture.start_over()
        wait_until(lambda: always.join().epoch > started.epoch, "another term")
        always.read_now()
    assert ids(log_rows(tmp_path)) == [1, 2]


def test_a_table_that_a_later_join_brings_is_read_from_then_on(orders: Database, tmp_path: Path) -> None:
    orders.execute("CREATE TABLE items (id int PRIMARY KEY)")
    orders.execute("CREATE TABLE published (id int PRIMARY KEY)")
    orders.execute("CREATE PUBLICATION penstock FOR TABLE published")
    names = [StreamId("public", name) for name in ("orders", "items", "published")]
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        first = always.join()
        assert first.published == (names[0],)
        orders.execute("INSERT INTO published VALUES (0)")
        always.read_now()
        later = always.capture.join(names)
        assert (later.epoch, later.slot_created) == (first.epoch, False)
        assert set(later.published) == {*names[1:]}
        snapshot = always.capture.snapshot()
        for name in ("orders", "items", "published"):
            orders.execute(f"INSERT INTO {name} VALUES (1)")
        always.read_now()
        for name in ("orders", "items", "published"):
            rows = log_rows(tmp_path, f"public.{name}")
            assert [row["id"] for row in rows if row["_tx"] >= snapshot.consistent_point] == ["1"], name
        assert orders.query("SELECT pid FROM pg_stat_activity WHERE pid = %s", (snapshot.held_by_pid,))
        always.capture.join(names)
        gone = "SELECT pid FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: not orders.query(gone, (snapshot.held_by_pid,)), "the snapshot to be released")


def test_a_table_that_cannot_be_read_fails_its_join_and_nothing_else(
    orders: Database, tmp_path: Path
) -> None:
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        epoch = always.join().epoch
        with pytest.raises(SourceError, match="no such table"):
            always.capture.join([StreamId("public", "missing")])
        assert always.capture.hello().epoch == epoch
        orders.execute("INSERT INTO orders VALUES (1)")
        always.read_now()
    assert ids(log_rows(tmp_path)) == [1]


@pytest.mark.slow
def test_a_slot_that_is_gone_is_for_a_person_to_look_at(orders: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        always.join()
        always.read_now()
        assert always.stop() == 0
    orders.execute(f"SELECT pg_drop_replication_slot('slot_{orders.name}')")
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        with pytest.raises(PositionGoneError):
            always.join()
        assert always.process.wait(120) == PositionGoneError.exit_code
    failed = [line["error"] for line in always.said if line["event"] == "failed"]
    assert [error["code"] for error in failed] == ["position_gone"]


@pytest.mark.slow
def test_a_slot_that_the_server_gives_up_is_said_to_be_lost_and_is_for_a_person_to_look_at(
    tmp_path: Path,
) -> None:
    small = {"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with EmbeddedPostgres(settings={"wal_level": "logical", **small}) as server:
        database = Database("postgres", server)
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        with AlwaysOn(always_spec(database, tmp_path)) as always:
            always.join()  # and the lane never says how far it is
            for number in range(6):
                database.execute("INSERT INTO orders VALUES (%s)", (number,))
                database.execute("SELECT pg_switch_wal()")
            database.execute("CHECKPOINT")
            wait_until(lambda: always.metric(metrics.SLOT_HEALTHY.name) == 0.0, "the loss to be said")
            with pytest.raises(PositionGoneError, match="lost"):
                always.join()
            assert always.process.wait(120) == PositionGoneError.exit_code
        failed = [line["error"] for line in always.said if line["event"] == "failed"]
        assert [error["code"] for error in failed] == ["position_gone"]


@pytest.mark.slow
def test_a_slot_that_somebody_else_reads_is_read_when_they_have_gone(
    orders: Database, tmp_path: Path
) -> None:
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        always.join()
        always.read_now()
        assert always.stop() == 0
    orders.execute("INSERT INTO orders VALUES (1)")
    foreign = ReplicationStream(
        connect(orders.url, replication=True), f"slot_{orders.name}", "penstock", Lsn(0)
    )
    with AlwaysOn(always_spec(orders, tmp_path), **{PATIENCE_VARIABLE: "0.2"}) as always:
        try:
            [(pid,)] = orders.query(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (f"slot_{orders.name}",)
            )
            with pytest.raises(SourceBusyError, match=f"process {pid} "):
                always.join()
            assert always.leads(), "whoever waits for the slot still leads"
        finally:
            foreign.close()
        always.join()
        always.read_now()
    assert ids(log_rows(tmp_path)) == [1]


@pytest.mark.slow
def test_what_the_source_keeps_is_said_while_no_lane_is_there(orders: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        always.join()
        always.read_now()
        assert always.stop() == 0
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        wait_until(lambda: always.metric(metrics.SLOT_HEALTHY.name) == 1.0, "the slot to be looked at")
        assert (always.metric(metrics.RETAINED_WAL_BYTES.name) or -1) >= 0
        assert always.metric(metrics.CAPTURE_LAG_BYTES.name) is None, "nothing is read yet"


def retained(database: Database) -> int:
    """Bytes of log that the server keeps for its only slot."""
    found = database.query(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots"
    )
    return int(found[0][0])


@pytest.mark.slow
def test_retained_log_stays_flat_while_another_database_writes(own: Database, tmp_path: Path) -> None:
    own.execute("CREATE DATABASE other")
    other = Database("other", own.server)
    other.execute("CREATE TABLE noise (id int, filler text)")
    with AlwaysOn(always_spec(own, tmp_path)) as always:
        always.join()
        for _ in range(3):
            before = own.query("SELECT pg_current_wal_lsn()::text")[0][0]
            for _ in range(8):
                other.execute(
                    "INSERT INTO noise SELECT i, repeat('x', 1000) FROM generate_series(1, 2000) AS i"
                )
            assert own.query("SELECT pg_current_wal_lsn() - %s::pg_lsn", (before,))[0][0] > 16 << 20
            other.execute("CHECKPOINT")
            always.capture.acknowledge("lake", always.read_now())
            wait_until(lambda: retained(own) < 4 << 20, "the slot to follow")


@pytest.mark.parametrize("policy", ["hold", "acknowledge_log"])
@pytest.mark.slow
def test_a_lane_that_lags_under_wal_pressure(policy: str, own: Database, tmp_path: Path) -> None:
    spec = always_spec(own, tmp_path, wal_max_retained=24 << 20, on_wal_pressure=policy)
    with AlwaysOn(spec) as always:
        always.join()
        held = always.read_now()
        always.capture.acknowledge("lake", held)
        wait_until(lambda: always.capture.progress().acknowledged == held, "the source to be told")
        own.execute("INSERT INTO orders SELECT i, repeat('x', 1000) FROM generate_series(1, 40000) AS i")
        own.execute("CHECKPOINT")
        end = always.read_now()
        if policy == "hold":
            wait_until(lambda: any("all it may" in note for note in always.notes), "people to be told")
            assert always.capture.progress().acknowledged == held
        else:
            wait_until(lambda: always.capture.progress().acknowledged >= end, "the slot to move on")
            wait_until(lambda: any("may forget" in note for note in always.notes), "people to be told")
        assert always.capture.lanes()[0].position == held
    assert len(log_rows(tmp_path)) == 40000, "the lane can catch up from the log"


def test_a_failover_slot_is_made_when_asked_for(own: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(own, tmp_path, failover=True)) as always:
        always.join()
        assert own.query(
            "SELECT failover FROM pg_replication_slots WHERE slot_name = %s", (f"slot_{own.name}",)
        ) == [(True,)]
        wait_until(lambda: "slot" in always.capture.status(), "the source to be looked at")
        assert always.capture.status()["slot"]["failover"] is True


def test_what_is_said_of_the_source(orders: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(orders, tmp_path)) as always:
        epoch = always.join().epoch
        orders.execute("INSERT INTO orders VALUES (1)")
        end = always.read_now()
        always.capture.acknowledge("lake", end)
        wait_until(lambda: always.metric(metrics.ACKNOWLEDGED.name) == end, "the numbers to be said")
        wait_until(lambda: always.metric(metrics.SLOT_HEALTHY.name) == 1.0, "the slot to be looked at")
        assert always.metric(metrics.EPOCH.name) == epoch
        assert always.metric(metrics.ROWS_CAPTURED.name) == 1
        wait_until(lambda: (always.metric(metrics.CHECKPOINTS_SAVED.name) or 0) >= 1, "a checkpoint")
        assert always.metric(metrics.LANE_LAG_SECONDS.name) == 0
        unknown = {
            name for line in always.said if line["event"] == "metrics" for name, _, _ in line["samples"]
        }
        assert unknown <= metrics.BY_NAME.keys()
        status = always.capture.status()
        assert status["leading"]
        assert Lsn.parse(status["log_end"]) >= end


@pytest.mark.slow
def test_reading_goes_on_at_a_standby_that_was_promoted(own: Database, tmp_path: Path) -> None:
    primary = own.server
    own.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    settings = {"hot_standby_feedback": "on", "sync_replication_slots": "on", "primary_slot_name": "standby"}
    with EmbeddedPostgres.standby_of(primary, settings=settings) as standby:
        promoted = Database("postgres", standby)
        source = (
            f"host=127.0.0.1 port={primary.port} user=postgres password={primary.password} dbname=postgres"
        )
        promoted.execute(f"ALTER SYSTEM SET primary_conninfo = '{source}'")
        promoted.execute("SELECT pg_reload_conf()")
        # Nothing is sent to us that the standby does not have.
        own.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
        own.execute("SELECT pg_reload_conf()")
        spec = always_spec(
            own, tmp_path, failover=True, heartbeat_s=QUICK_HEARTBEAT_S, url=_either(primary, standby)
        )
        with AlwaysOn(spec) as always:
            always.join()
            own.execute("INSERT INTO orders SELECT generate_series(1, 100)")
            end = always.read_now()
            always.capture.acknowledge("lake", end)
            wait_until(lambda: _is_there(promoted, slot_of(spec), end), "the slot to be at the standby")
            own.execute("INSERT INTO orders SELECT generate_series(101, 200)")
            always.read_now()
            primary.kill()
            promoted.execute("SELECT pg_promote()")
            promoted.execute("INSERT INTO orders SELECT generate_series(201, 300)")
            always.read_now()
            assert ids(log_rows(tmp_path)) == list(range(1, 301))
            assert {manifest.timeline for manifest in ChangeLog(tmp_path / "log").manifests()} == {1, 2}


def _either(first: EmbeddedPostgres, second: EmbeddedPostgres) -> str:
    places = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    password = quote(first.password, safe="")
    return f"postgresql://postgres:{password}@{places}/postgres?target_session_attrs=read-write"


def _is_there(standby: Database, slot: str, position: Lsn) -> bool:
    """Whether the standby has the slot for good, and at `position`."""
    found = standby.query(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s AND NOT temporary",
        (slot,),
    )
    return bool(found) and Lsn.parse(found[0][0]) >= position


def test_only_the_lake_joins_with_a_table_whose_changes_lack_columns(
    orders: Database, tmp_path: Path
) -> None:
    """It lets the stream stand still; other lanes would tell of rows without those columns."""
    orders.execute("ALTER TABLE orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    orders.execute(
        "CREATE PUBLICATION penstock FOR TABLE orders "
        "WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false)"
    )
    stream = StreamId("public", "orders")
    lanes = {"lake": None, "kafka": None}
    with AlwaysOn(always_spec(orders, tmp_path, lanes=lanes, publication_mode="manual")) as always:
        wait_until(always.leads, "capture to lead")
        always.capture.join([stream])
        with RemoteCapture(always.capture.address, "kafka") as other:
            with pytest.raises(SourceError, match="leaves out generated columns") as raised:
                other.join([stream])
            assert raised.value.stream == "public.orders"
            orders.execute("ALTER PUBLICATION penstock SET (publish_generated_columns = stored)")
            other.join([stream])


def test_a_lane_has_a_publication_of_ours_publish_generated_columns(orders: Database, tmp_path: Path) -> None:
    """As after an upgrade from a server that could not, without a lake that would see to it."""
    orders.execute("ALTER TABLE orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    orders.execute(
        "CREATE PUBLICATION penstock FOR TABLE orders "
        "WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false)"
    )
    with AlwaysOn(always_spec(orders, tmp_path, lanes={"kafka": None})) as always:
        wait_until(always.leads, "capture to lead")
        with RemoteCapture(always.capture.address, "kafka") as lane:
            lane.join([StreamId("public", "orders")])
    assert orders.query("SELECT pubgencols::text FROM pg_publication WHERE pubname = 'penstock'") == [("s",)]
