"""The state file on disk: versions, the fence between writers, crashes, edits, corruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.ledger import store as store_module
from penstock.ledger import two_phase
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord, LoadRecords
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.store import StateStore

EPOCH = Lsn.parse("0/100")


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path)


def with_timeline(document: StateDocument, timeline: int) -> StateDocument:
    """A visible difference between versions."""
    return document.identified(system_id="7", timeline=timeline, epoch=EPOCH)


def save_versions(store: StateStore, count: int) -> StateDocument:
    document = StateDocument.new()
    for timeline in range(1, count + 1):
        document = store.save(with_timeline(document, timeline))
    return document


def test_a_directory_that_never_had_a_state_has_none(store: StateStore) -> None:
    assert store.load() is None


def test_what_was_saved_is_loaded(store: StateStore) -> None:
    saved = save_versions(store, 3)
    assert saved.state_version == 3
    assert store.load() == saved
    assert json.loads(store.path.read_text()) == saved.to_json()
    assert [entry.version for entry in store.history()] == [3, 2, 1]


def test_of_two_writers_that_loaded_the_same_version_one_can_save(store: StateStore) -> None:
    save_versions(store, 1)
    mine, theirs = store.load(), store.load()
    assert mine is not None
    assert theirs is not None
    store.save(with_timeline(mine, 8))
    with pytest.raises(StateError, match="Another process writes this state"):
        store.save(with_timeline(theirs, 9))
    loaded = store.load()
    assert loaded is not None
    assert loaded.timeline == 8


def test_of_many_writers_racing_for_one_version_exactly_one_wins(store: StateStore) -> None:
    start = save_versions(store, 1)
    barrier, outcomes = threading.Barrier(8), []

    def write(timeline: int) -> None:
        barrier.wait()
        try:
            store.save(with_timeline(start, timeline))
            outcomes.append(timeline)
        except StateError:
            pass

    threads = [threading.Thread(target=write, args=(timeline,)) for timeline in range(100, 108)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded = store.load()
    assert loaded is not None
    assert [loaded.timeline] == outcomes


def test_a_writer_that_slept_past_the_pruning_of_its_number_is_refused(store: StateStore) -> None:
    asleep = save_versions(store, 1)
    save_onward = asleep
    for _ in range(store_module.VERSIONS_KEPT + 10):
        save_onward = store.save(save_onward)
    assert not (store.history_directory / f"{2:020d}.json").exists()
    with pytest.raises(StateError, match="Another process"):
        store.save(asleep)
    assert store.load() == save_onward


KILLED_SAVE = """
import sys
from pathlib import Path
from penstock.core.position import Lsn
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
store = StateStore(Path(sys.argv[1]))
document = store.load() or StateDocument.new()
store.save(document.identified(system_id="7", timeline=99, epoch=Lsn.parse("0/100")))
"""


@pytest.mark.parametrize("versions_before", [0, 1, 5])
def test_a_kill_between_the_version_and_the_file_is_rolled_forward(
    store: StateStore, tmp_path: Path, versions_before: int
) -> None:
    save_versions(store, versions_before)
    report = tmp_path / "report"
    environment = {
        **os.environ,
        "PENSTOCK_FAILPOINT": "state.version_written=kill",
        "PENSTOCK_FAILPOINT_REPORT": str(report),
    }
    ended = subprocess.run([sys.executable, "-c", KILLED_SAVE, str(tmp_path)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert report.read_text() == "state.version_written=kill\n"
    loaded = store.load()
    assert loaded is not None
    assert (loaded.state_version, loaded.timeline) == (versions_before + 1, 99)
    assert store.save(loaded).state_version == versions_before + 2
    assert json.loads(store.path.read_text())["penstock"]["state_version"] == versions_before + 2


def test_an_edited_file_is_taken_and_numbered_on(store: StateStore) -> None:
    save_versions(store, 3)
    raw = json.loads(store.path.read_text())
    raw["penstock"]["timeline"] = 42
    store.path.write_text(json.dumps(raw))
    loaded = store.load()
    assert loaded is not None
    assert loaded.timeline == 42
    assert store.save(loaded).state_version == 4


def test_an_old_file_that_was_edited_is_taken_and_an_unedited_one_is_rolled_forward(
    store: StateStore,
) -> None:
    save_versions(store, 3)
    second = json.loads((store.history_directory / f"{2:020d}.json").read_text())
    store.path.write_text(json.dumps(second))
    loaded = store.load()
    assert loaded is not None
    assert loaded.timeline == 3
    second["penstock"]["timeline"] = 42
    store.path.write_text(json.dumps(second))
    loaded = store.load()
    assert loaded is not None
    assert (loaded.timeline, store.save(loaded).state_version) == (42, 4)


def test_an_imported_file_is_taken_with_its_own_fields(store: StateStore) -> None:
    save_versions(store, 2)
    store.path.write_text('{"type": "STREAM", "version": 3, "streams": [], "theirs": 0.10}')
    loaded = store.load()
    assert loaded is not None
    saved = store.save(loaded)
    assert saved.state_version == 3
    assert saved.pipeline_id
    assert '"theirs": 0.10' in store.path.read_text()


def test_a_file_older_than_its_history_reaches_is_an_error(store: StateStore) -> None:
    save_versions(store, 3)
    store.path.write_bytes((store.history_directory / f"{1:020d}.json").read_bytes())
    (store.history_directory / f"{1:020d}.json").unlink()
    with pytest.raises(StateError, match="says it is version 1") as caught:
        store.load()
    assert "state restore" in caught.value.remedy


@pytest.mark.parametrize(
    "content", [b"", b"  \n", b'{"type": "GLO', b"[]", b"null", b"\xff\xfe", b'{"streams": 1}', b'{"a": NaN}']
)
def test_a_corrupt_file_is_never_a_new_start(store: StateStore, content: bytes) -> None:
    save_versions(store, 3)
    store.path.write_bytes(content)
    with pytest.raises(StateError, match=r"state\.json cannot be used") as caught:
        store.load()
    assert "`penstock state restore`" in caught.value.remedy
    assert "newest good version in history is 3" in caught.value.remedy
    restored = store.restore()
    assert (restored.timeline, restored.state_version) == (3, 4)
    assert store.load() == restored


def test_a_truncated_file_names_the_newest_version_that_can_be_read(store: StateStore) -> None:
    save_versions(store, 3)
    store.path.write_bytes(store.path.read_bytes()[:40])
    (store.history_directory / f"{3:020d}.json").write_bytes(b"{")
    with pytest.raises(StateError) as caught:
        store.load()
    assert "newest good version in history is 2" in caught.value.remedy
    assert store.restore().timeline == 2


def test_a_missing_file_is_never_a_new_start(store: StateStore) -> None:
    save_versions(store, 2)
    store.path.unlink()
    with pytest.raises(StateError, match="is missing"):
        store.load()
    assert store.restore(1).timeline == 1


def test_what_is_restored_was_led_by_whoever_led_last(store: StateStore) -> None:
    """Else tables that this state's own leader wrote since would seem to be another instance's."""
    document = StateDocument.new()
    for epoch in (10, 20, 30):
        document = store.save(document.identified(system_id="1", timeline=1, epoch=Lsn(epoch)))
    assert store.restore(1).epoch == 30


def test_a_version_that_is_not_kept_cannot_be_restored(store: StateStore) -> None:
    save_versions(store, 2)
    with pytest.raises(StateError, match="no version 9"):
        store.restore(9)


def test_history_keeps_the_newest_versions_and_one_per_hour(store: StateStore) -> None:
    document = save_versions(store, 35)
    noon = time.time() // 3600 * 3600
    for version in range(1, 36):  # ten versions an hour
        moment = noon - 36000 + version // 10 * 3600
        os.utime(store.history_directory / f"{version:020d}.json", (moment, moment))
    for _ in range(35, 80):
        document = store.save(document)
    kept = sorted(entry.version for entry in store.history())
    assert kept == [9, 19, 29, 30, *range(31, 81)]


def test_of_a_round_of_many_streams_its_end_is_kept_like_that_of_others(store: StateStore) -> None:
    streams = [StreamId("public", f"t{number}") for number in range(5)]
    document = StateDocument.new()
    for stream in streams:
        document = two_phase.plan_load(
            document, stream, sync_mode="cdc", load_id="l", generation="g", chunks=[Chunk(None, None)]
        )
        document = two_phase.join_global(two_phase.load_done(document, stream, Lsn(100)), stream)
    document = store.save(document)
    ends: list[int] = []
    for number in range(2, 62):
        to = Lsn(100 * number)
        document = store.save(two_phase.prepare_round(document, to, streams))
        for stream in streams:
            document = store.save(two_phase.stream_committed(document, stream, to))
        document = store.save(two_phase.finish_round(document))
        assert document.state_version is not None
        ends.append(document.state_version)
    kept = [entry.version for entry in StateStore(store.directory).history()]
    assert set(ends[-50:]) <= set(kept)
    assert ends[-60] not in kept
    assert len(kept) <= 50 + 50 + 10 + 2, "the newest, ends of rounds, what is not pruned yet, and hours"
    assert [store.version(end).lsn for end in ends[-50:]] == [Lsn(100 * number) for number in range(12, 62)]


def test_a_disk_that_is_full_leaves_the_state_as_it_was(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save_versions(store, 2)
    monkeypatch.setattr(failpoints, "_reached", {})
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "state.version_written=enospc")
    with pytest.raises(OSError, match="No space left"):
        store.save(with_timeline(saved, 9))
    loaded = store.load()  # the version was durable: it is the state
    assert loaded is not None
    assert loaded.timeline == 9


ORDERS = StreamId("public", "Orders & more")


def load_record() -> LoadRecord:
    column = SourceColumn("id", 20, -1, "int8", "bigint")
    return LoadRecord(
        load_id="l",
        generation="g",
        stream=ORDERS,
        method="ctid",
        key_column=None,
        schema=TableSchema(ORDERS, (column,), ("id",)),
        settings={"mode": "cdc", "write": "upsert"},
        points=(LoadPoint(Lsn(100), "0001-1"),),
        chunks=(
            LoadChunk(str(ORDERS), "(0,0)", "(10,0)", 555),
            LoadChunk(str(ORDERS), "(10,0)", None, 555),
        ),
    )


def test_a_load_record_survives_and_is_deleted(tmp_path: Path) -> None:
    records = LoadRecords(tmp_path / "load")
    assert records.load(ORDERS) is None
    records.save(load_record())
    assert records.load(ORDERS) == load_record()
    assert records.open_points({ORDERS, StreamId("a", "b")}) == [Lsn(100)]
    records.delete(ORDERS)
    records.delete(ORDERS)
    assert records.load(ORDERS) is None


def test_a_resumed_load_knows_under_which_point_each_chunk_was_read() -> None:
    record = load_record()
    second = record.chunk(Chunk("(10,0)", None))
    resumed = record.resumed(LoadPoint(Lsn(200), "0002-1"), frozenset({second}))
    assert (resumed.oldest_point, resumed.newest_point) == (100, 200)
    assert resumed.point_of(resumed.chunk(Chunk("(0,0)", "(10,0)"))).consistent_point == 100
    assert resumed.point_of(resumed.chunk(Chunk("(10,0)", None))).consistent_point == 200
    assert LoadRecord.from_json(resumed.to_json()) == resumed


def test_a_corrupt_load_record_is_a_clear_error(tmp_path: Path) -> None:
    records = LoadRecords(tmp_path)
    records.save(load_record())
    records.path(ORDERS).write_bytes(records.path(ORDERS).read_bytes()[:30])
    with pytest.raises(StateError, match="cannot be read") as caught:
        records.load(ORDERS)
    assert "resync" in caught.value.remedy


def test_a_file_that_another_process_is_writing_beside_the_state_is_left_alone(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    foreign, own = tmp_path / ".checkpoint.json.0123.tmp", tmp_path / ".state.json.0123.tmp"
    for path in (foreign, own):
        path.symlink_to(tmp_path / "gone")  # to look at it fails, as if it had just been renamed away
    document = StateDocument.new()
    for _ in range(25):  # prunes along the way
        document = store.save(document)
    assert foreign.is_symlink()
