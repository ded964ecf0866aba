"""The checkpoint file."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyarrow.fs import LocalFileSystem

from penstock import failpoints
from penstock.capture.checkpoints import CheckpointSaver
from penstock.core.position import Lsn
from penstock.ledger import checkpoint_history
from penstock.ledger.checkpoint import Checkpoint, CheckpointFile
from penstock.ledger.checkpoint_store import Directory, ObjectStore
from penstock.log.writer import LogWriter
from penstock.metrics import CHECKPOINT_AGE_SECONDS
from tests.conftest import wait_until

POSITION = Lsn.parse("1234/5678ABCD")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.json"


@pytest.fixture
def file(path: Path) -> CheckpointFile:
    return CheckpointFile(path, history_kept=3)


def history(path: Path) -> list[Path]:
    return sorted((path.parent / "checkpoint.history").iterdir())


def test_a_checkpoint_is_written_as_documented(file: CheckpointFile, path: Path) -> None:
    assert file.save(POSITION, 150000)
    fields = json.loads(path.read_text())
    assert (fields["lsn"], fields["message_count"]) == ("1234/5678ABCD", 150000)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", fields["timestamp"])
    assert list(fields) == ["lsn", "timestamp", "message_count"]
    assert file.load() == file.last_saved


def test_no_checkpoint_is_none(file: CheckpointFile) -> None:
    assert file.load() is None


@pytest.mark.parametrize(
    "content",
    [b"", b'{"lsn": "12', b"[]", b'{"lsn": "nowhere"}', b'{"lsn": true}', b"\xff", b'{"timestamp": ""}'],
)
def test_a_corrupt_checkpoint_gives_way_to_the_newest_good_one(
    file: CheckpointFile, path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file.save(Lsn(1), 1)
    file.save(Lsn(2), 2)
    history(path)[-1].write_bytes(content)
    path.write_bytes(content)
    loaded = CheckpointFile(path).load()
    assert loaded is not None
    assert (loaded.lsn, loaded.message_count) == (1, 1)
    assert "cannot be read" in capsys.readouterr().out


def test_a_corrupt_checkpoint_without_history_is_none_and_never_zero(
    file: CheckpointFile, path: Path
) -> None:
    path.write_bytes(b"{")
    assert file.load() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"lsn": "0/10", "later": {"field": 1}}', Checkpoint(Lsn(16), "", 0)),
        ('{"lsn": 16, "message_count": 4}', Checkpoint(Lsn(16), "", 4)),
        (
            '{"lsn": "0/10", "timestamp": "2023-10-20T15:30:45Z"}',
            Checkpoint(Lsn(16), "2023-10-20T15:30:45Z", 0),
        ),
    ],
)
def test_older_formats_and_unknown_fields_are_accepted(
    file: CheckpointFile, path: Path, text: str, expected: Checkpoint
) -> None:
    path.write_text(text)
    assert file.load() == expected


def test_a_failed_write_is_counted_and_not_raised(
    file: CheckpointFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert file.save(Lsn(1), 1)
    monkeypatch.setattr(failpoints, "_reached", {})
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "checkpoint.write=enospc")
    assert not file.save(Lsn(2), 2)
    assert file.failed_saves == 1
    assert file.last_saved is not None
    assert file.last_saved.lsn == 1
    assert "checkpoint not written" in capsys.readouterr().out
    monkeypatch.delenv("PENSTOCK_FAILPOINT")
    assert file.save(Lsn(3), 3)
    assert file.load() == file.last_saved


def test_the_history_keeps_the_last_ones_of_every_process(path: Path) -> None:
    for number in range(1, 8):
        assert CheckpointFile(path, history_kept=3 if number > 5 else 5).save(Lsn(number), number)
    assert [json.loads(each.read_text())["lsn"] for each in history(path)] == ["0/5", "0/6", "0/7"]


def test_a_store_that_removes_nothing_costs_no_memory(
    file: CheckpointFile, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_store: Directory, name: str) -> NoReturn:
        raise PermissionError(f"{name} stays")

    monkeypatch.setattr(checkpoint_history, "LEFT_OVER_MAX", 10)
    with monkeypatch.context() as context:
        context.setattr(Directory, "remove", refuse)
        for number in range(1, 31):
            assert file.save(Lsn(number), number)
            assert len(file._history) <= 3 + 10
    assert "old checkpoint not removed" in capsys.readouterr().out
    assert len(history(path)) == 30
    assert CheckpointFile(path, history_kept=3).save(Lsn(31), 31)
    assert len(history(path)) == 3, "the next process removes what is left over"


def test_a_checkpoint_that_only_its_history_has_leaves_no_more_than_the_history(
    file: CheckpointFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Directory.write

    def refuse_the_newest(store: Directory, name: str, content: bytes) -> None:
        if name == path.name:
            raise PermissionError(name)
        write(store, name, content)

    monkeypatch.setattr(Directory, "write", refuse_the_newest)
    for number in range(1, 11):
        assert not file.save(Lsn(number), number)
    assert file.failed_saves == 10
    assert len(history(path)) == 3


def test_concurrent_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    CheckpointFile(path).save(Lsn(1), 1)
    stop = threading.Event()
    wrong: list[object] = []

    def write(number: int) -> None:
        own = CheckpointFile(path)
        for _ in range(20):
            own.save(Lsn(number), number)

    def read() -> None:
        while not stop.is_set():
            seen = Checkpoint.from_json(json.loads(path.read_text()))
            if seen.lsn != seen.message_count:
                wrong.append(seen)

    writers = [threading.Thread(target=write, args=(number,)) for number in (10**3, 10**9)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert wrong == []


def test_a_write_that_is_not_answered_is_never_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would land after the newer one; also one of an earlier term's store."""
    answered = threading.Event()

    class Slow:
        def open_output_stream(self, place: str) -> Any:
            answered.wait()
            return LocalFileSystem().open_output_stream(place)

    older, newer = (ObjectStore(f"file://{tmp_path}", call_timeout_s=timeout_s) for timeout_s in (0.1, 10))
    monkeypatch.setattr(older, "_opened", (Slow(), str(tmp_path)))
    with pytest.raises(TimeoutError, match="within"):
        older.write("a.json", b"older")
    for store in (older, newer):
        with pytest.raises(TimeoutError, match="earlier write"):
            store.write("a.json", b"newer")
    newer.write("b.json", b"another name")
    answered.set()
    wait_until((tmp_path / "a.json").exists, "the older write to land")

    def is_written() -> bool:
        try:
            newer.write("a.json", b"newer")
        except TimeoutError:
            return False
        return True

    wait_until(is_written, "the newer one to be taken")
    assert newer.read("a.json") == b"newer"


@dataclass
class Clock:
    now: float = 1000.0


class TestSaver:
    """Saving in the background."""

    @staticmethod
    def log(directory: Path) -> LogWriter:
        return LogWriter(directory / "log", system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(100), last_seq=0)

    @staticmethod
    def seal(log: LogWriter, to: int, messages: int = 0) -> None:
        log.messages = messages
        assert log.seal(Lsn(to)) is not None

    def test_every_sealed_step_is_saved_sooner_or_later(self, path: Path) -> None:
        log = self.log(path.parent)
        saver = CheckpointSaver(path, log, interval_s=0.2)
        for to in (200, 300, 400):
            self.seal(log, to)
            saver.sealed()
        wait_until(lambda: saver.saved == 400, "the last position to be saved")
        assert len(history(path)) < 4
        saver.close()

    def test_within_the_interval_only_much_is_saved(self, path: Path) -> None:
        log = self.log(path.parent)
        saver = CheckpointSaver(path, log, interval_s=3600)
        wait_until(lambda: saver.saved == 100, "the first one to be saved")
        self.seal(log, 200)
        saver.sealed()
        self.seal(log, 1 << 30)
        assert len(history(path)) == 1
        saver.sealed()
        wait_until(lambda: saver.saved == 1 << 30, "a large step to be saved")
        self.seal(log, (1 << 30) + 1)
        saver.close()
        assert saver.saved == (1 << 30) + 1

    def test_what_could_not_be_saved_is_not_acknowledged_and_tried_again(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = self.log(path.parent)
        saver = CheckpointSaver(path, log, interval_s=3600)
        wait_until(lambda: saver.saved == 100, "the first one to be saved")
        self.seal(log, 200)
        monkeypatch.setattr(failpoints, "_reached", {})
        monkeypatch.setenv("PENSTOCK_FAILPOINT", "checkpoint.write=enospc")
        saver.sealed()
        assert saver.save_before_acknowledging() == 100
        assert saver.failures == 1
        assert self.age_s(saver) > 0
        assert saver.save_before_acknowledging() is None
        assert saver.saved == 200
        assert self.age_s(saver) == 0
        saver.close()

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(time, "monotonic", lambda: clock.now)
        return clock

    def saved(self, path: Path) -> tuple[LogWriter, CheckpointSaver]:
        """A log, and a saver that has saved all there is of it."""
        log = self.log(path.parent)
        saver = CheckpointSaver(path, log, interval_s=3600)
        assert saver.save_before_acknowledging() is None
        return log, saver

    def test_on_a_quiet_source_no_checkpoint_is_old(self, path: Path, clock: Clock) -> None:
        log, saver = self.saved(path)
        clock.now += 600
        assert self.age_s(saver) == 0
        self.seal(log, 200)
        saver.sealed()
        clock.now += 5
        self.seal(log, 300)
        saver.sealed()
        clock.now += 5
        assert self.age_s(saver) == 10
        assert saver.save_before_acknowledging() is None
        assert self.age_s(saver) == 0
        saver.close()

    def test_what_was_sealed_while_a_checkpoint_was_saved_has_its_own_age(
        self, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log, saver = self.saved(path)
        self.seal(log, 200)
        saver.sealed()
        clock.now += 60
        save = CheckpointFile.save

        def seal_meanwhile(file: CheckpointFile, lsn: Lsn, message_count: int) -> bool:
            self.seal(log, 300)
            saver.sealed()
            return save(file, lsn, message_count)

        monkeypatch.setattr(CheckpointFile, "save", seal_meanwhile)
        saver.save_before_acknowledging()
        monkeypatch.setattr(CheckpointFile, "save", save)
        clock.now += 3
        assert saver.saved == 200
        assert self.age_s(saver) == 3
        saver.close()

    def test_an_error_that_nobody_thought_of_does_not_end_the_saving(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*_: object) -> NoReturn:
            raise RuntimeError("secret")

        log = self.log(path.parent)
        with monkeypatch.context() as broken:
            broken.setattr(Directory, "read", fail)
            broken.setattr(Directory, "write", fail)
            saver = CheckpointSaver(path, log, interval_s=3600)
            assert saver.save_before_acknowledging() == 0
            assert saver.failures >= 1
        assert saver.save_before_acknowledging() is None
        assert saver.saved == 100
        saver.close()
        said = capsys.readouterr().out
        assert "RuntimeError" in said
        assert "secret" not in said

    @staticmethod
    def age_s(saver: CheckpointSaver) -> float:
        ((name, _, value),) = saver.samples()
        assert name == CHECKPOINT_AGE_SECONDS.name
        return value

    def test_messages_are_counted_on_when_the_log_is_begun_anew(self, path: Path) -> None:
        counts = []
        for directory in (path.parent, path.parent / "anew"):
            log = self.log(directory)
            saver = CheckpointSaver(path, log)
            self.seal(log, 200, messages=40)
            assert saver.save_before_acknowledging() is None
            saver.close()
            counts.append(json.loads(path.read_text())["message_count"])
        assert counts == [40, 80]
