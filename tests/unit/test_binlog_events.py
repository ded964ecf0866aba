"""Recorded binary logs of real servers (`tests.record_binlog`), decoded without one."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog import event_kernels as kernels
from penstock.sources.mysql.binlog.events import Carry, Ending, Rotation, Statement, Tables, scan
from penstock.sources.mysql.binlog.packets import EventBatch
from tests.binlog_reading import Decoder, Read
from tests.record_binlog import FIXTURES

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def recording(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{request.param}.json").read_text())
    found["events"] = [bytes.fromhex(event) for event in found["events"]]
    found["mariadb"] = request.param == "mariadb"
    return found


def decode(recording: dict[str, Any], batches: list[list[bytes]]) -> Read:
    collations = {int(number): name for number, name in recording["collations"].items()}
    decoder = Decoder(collations, recording["mariadb"])
    for batch in batches:
        decoder.take(EventBatch.join(batch))
    return decoder.read


def test_the_rows_that_remain_are_those_the_server_shows(recording: dict[str, Any]) -> None:
    read = decode(recording, [recording["events"]])
    rows: dict[str | None, dict[str, str | None]] = {}
    for change in read.of("shop.mixed"):
        before = {} if change.kind == "i" else rows.pop(change.old["id"])
        if change.kind != "d":
            rows[change.new["id"]] = before | change.new
    names = ("id", "amount", "at", "name", "kind", "document")
    found = [
        [row.get(name) for name in names]
        for _, row in sorted(rows.items(), key=lambda item: int(item[0] or 0))
    ]
    assert found == recording["shown"]


def test_what_is_not_a_row_is_told(recording: dict[str, Any]) -> None:
    read = decode(recording, [recording["events"]])
    words = [rare.text.split()[0] for rare in read.rare if isinstance(rare, Statement)]
    assert words == ["CREATE", "ALTER"]
    assert len({rare.file for rare in read.rare if isinstance(rare, Rotation)}) == 2
    assert read.endings.count(Ending.COMMITTED) == 5
    assert len(set(read.gtids)) == len(read.gtids) == 7
    assert [change.ordinal for change in read.changes] == [0, 0, 1, 2, 3, 0, 0, 0]


def test_the_result_does_not_depend_on_where_batches_are_cut(recording: dict[str, Any]) -> None:
    events = recording["events"]
    whole = decode(recording, [events])
    assert decode(recording, [[event] for event in events]) == whole
    for cut in range(1, len(events)):
        assert decode(recording, [events[:cut], events[cut:]]) == whole


def test_rows_of_a_table_that_was_not_described_are_refused(recording: dict[str, Any]) -> None:
    rows = [event for event in recording["events"] if event[4] in (kernels.WRITE_1, kernels.WRITE_2)]
    with pytest.raises(SourceError, match="not described"):
        decode(recording, [rows[:1]])


def test_rows_that_do_not_fit_their_description_are_refused(recording: dict[str, Any]) -> None:
    events = list(recording["events"])
    at = next(n for n, event in enumerate(events) if event[4] in (kernels.WRITE_1, kernels.WRITE_2))
    events[at] = events[at][:-1]
    with pytest.raises(SourceError, match="do not fit"):
        decode(recording, [events])


@pytest.mark.parametrize(
    ("kind", "words"), [(kernels.PARTIAL_UPDATE, "parts of changed JSON"), (99, "does not know"), (26, "gap")]
)
def test_events_that_cannot_be_decoded_are_refused(kind: int, words: str) -> None:
    event = struct.pack("<IBIIIH", 1, kind, 7, 29, 0, 0) + bytes(10)
    with pytest.raises(SourceError, match=words):
        scan(EventBatch.join([event]), 0, 1, Carry(), Tables())


def test_an_unknown_event_that_may_be_ignored_is() -> None:
    event = struct.pack("<IBIIIH", 1, 99, 7, 29, 0, 0x80) + bytes(10)
    found = scan(EventBatch.join([event]), 0, 1, Carry(), Tables())
    assert len(found.kind) == 0
    assert found.rare == ()
