"""The checkpoint file."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.core.position import Lsn
from penstock.ledger.checkpoint import Checkpoint, CheckpointFile

POSITION = Lsn.parse("1234/5678ABCD")


@pytest.fixture
def file(tmp_path: Path) -> CheckpointFile:
    return CheckpointFile(tmp_path / "checkpoint.json", history_kept=3)


def test_a_checkpoint_is_written_as_documented(file: CheckpointFile) -> None:
    assert file.save(POSITION, 150000)
    fields = json.loads(file.path.read_text())
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
    file: CheckpointFile, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file.save(Lsn(1), 1)
    file.save(Lsn(2), 2)
    newest = sorted(file.history_directory.iterdir())[-1]
    newest.write_bytes(content)
    file.path.write_bytes(content)
    loaded = CheckpointFile(file.path).load()
    assert loaded is not None
    assert (loaded.lsn, loaded.message_count) == (1, 1)
    assert "cannot be read" in capsys.readouterr().out


def test_a_corrupt_checkpoint_without_history_is_none_and_never_zero(file: CheckpointFile) -> None:
    file.path.write_bytes(b"{")
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
    file: CheckpointFile, text: str, expected: Checkpoint
) -> None:
    file.path.write_text(text)
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


def test_the_history_keeps_the_last_ones(file: CheckpointFile) -> None:
    for number in range(1, 8):
        file.save(Lsn(number), number)
    kept = [json.loads(path.read_text())["lsn"] for path in sorted(file.history_directory.iterdir())]
    assert kept == ["0/5", "0/6", "0/7"]


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
