"""Who reads the log without asking for a place in it gets what it holds, while retention is at work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import PositionGoneError
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.lake.data_source import LogPartition, PenstockSource
from penstock.log.reader import ChangeLog
from penstock.log.retention import apply_retention
from penstock.pipeline import LogView
from tests.unit.test_log import ORDERS, three_steps

pytestmark = pytest.mark.unit


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    """Six changes in three steps: 100 and 150, 200 and 250, 300 and 350."""
    return three_steps(tmp_path / "log")


@pytest.fixture
def retention(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Have retention take what is before a position, once, right after a method of a log has answered."""

    def strikes_after(method: str, before: int) -> None:
        answer = getattr(ChangeLog, method)

        def and_then(self: ChangeLog, *given: Any) -> Any:
            answered = answer(self, *given)
            monkeypatch.setattr(ChangeLog, method, answer)
            apply_retention(log.directory, Lsn(before))
            return answered

        monkeypatch.setattr(ChangeLog, method, and_then)

    return strikes_after


@pytest.mark.parametrize("method", ["start", "files"])
def test_a_view_has_what_the_log_holds_when_it_is_read(
    log: ChangeLog, retention: Callable[[str, int], None], method: str
) -> None:
    retention(method, 200)
    assert LogView(ORDERS, log).to_arrow()["id"].to_pylist() == ["200.0", "250.0", "300.0", "350.0"]


def test_a_view_after_an_offset_too(log: ChangeLog, retention: Callable[[str, int], None]) -> None:
    retention("start", 300)
    after = LogOffset(150, 0)
    assert LogView(ORDERS, log).to_arrow(after)["id"].to_pylist() == ["300.0", "350.0"]


def test_a_file_that_is_missing_for_another_reason_is_an_error(log: ChangeLog) -> None:
    log.files(ORDERS, Lsn(100), Lsn(200)).files[0].path.unlink()
    with pytest.raises(FileNotFoundError):
        LogView(ORDERS, log).to_arrow()


def source(log: ChangeLog, **options: str) -> PenstockSource:
    return PenstockSource({"state": str(log.directory.parent), "stream": str(ORDERS), **options})


def planned(source: PenstockSource) -> list[int]:
    """Where the files begin that a batch query reads."""
    parts = source.reader(source.schema()).partitions()
    assert all(isinstance(each, LogPartition) for each in parts)
    return [file.first_tx for each in parts for file in each.part.files]  # type: ignore[attr-defined]


def test_a_query_that_says_no_place_is_planned_with_what_there_is(
    log: ChangeLog, retention: Callable[[str, int], None]
) -> None:
    assert planned(source(log)) == [100, 200, 300]
    retention("start", 200)
    assert planned(source(log)) == [200, 300]


def test_the_columns_of_a_query_are_found_while_retention_is_at_work(
    log: ChangeLog, retention: Callable[[str, int], None]
) -> None:
    retention("start", 300)
    assert "id" in source(log).schema().names


def test_a_query_that_says_a_place_is_told_that_it_is_gone(
    log: ChangeLog, retention: Callable[[str, int], None]
) -> None:
    asked = source(log, **{"from": "150_0"})
    reader = asked.reader(asked.schema())
    retention("start", 200)
    with pytest.raises(PositionGoneError, match="begins at 0/C8"):
        reader.partitions()
