"""The epochs of MySQL's terms, which a clock gives that may be set back."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.capture.mysql import source as mysql_source
from penstock.capture.mysql.source import MysqlCapture
from penstock.capture.source_spec import MysqlSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.position import Lsn
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
from penstock.log.writer import open_writer

pytestmark = pytest.mark.unit

NOW = Lsn(1_000_000)
SOURCE = MysqlSpec("mysql://root@localhost/shop", "shop", 7)


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MysqlCapture:
    monkeypatch.setattr(mysql_source, "clock", lambda _: NOW)
    monkeypatch.setattr(MysqlCapture, "_ordinary", lambda _: None)
    return MysqlCapture(SOURCE, CaptureSpec(SOURCE, tmp_path / "log", tmp_path / "checkpoint.json"))


def _led(directory: Path, epoch: int) -> None:
    document = StateDocument.new(source="mysql")
    StateStore(directory).save(document.identified(system_id="1", timeline=1, epoch=Lsn(epoch)))


def test_an_epoch_is_the_time(capture: MysqlCapture, tmp_path: Path) -> None:
    _led(tmp_path, NOW - 1)
    assert capture.new_epoch() == NOW


def test_a_clock_that_was_set_back_gives_an_epoch_after_that_of_the_state(
    capture: MysqlCapture, tmp_path: Path
) -> None:
    _led(tmp_path, NOW + 500)
    assert capture.new_epoch() == NOW + 501


def test_a_clock_that_was_set_back_gives_an_epoch_after_that_of_the_log(
    capture: MysqlCapture, tmp_path: Path
) -> None:
    _led(tmp_path, NOW + 500)
    ahead = Lsn(NOW + 700)
    writer = open_writer(tmp_path / "log", system_id="1", timeline=1, epoch=ahead, newest=None, start=Lsn(10))
    writer.seal(Lsn(20))
    assert capture.new_epoch() == NOW + 701


def test_a_clock_that_was_set_back_gives_an_epoch_after_that_of_tables(
    capture: MysqlCapture, tmp_path: Path
) -> None:
    spec = CaptureSpec(SOURCE, tmp_path / "log", tmp_path / "checkpoint.json", epoch_above=Lsn(NOW + 900))
    assert MysqlCapture(SOURCE, spec).new_epoch() == NOW + 901


def test_a_state_that_cannot_be_read_does_not_keep_capture_from_leading(
    capture: MysqlCapture, tmp_path: Path
) -> None:
    (tmp_path / "state.json").write_text("{")
    assert capture.new_epoch() == NOW
