"""The file target: what is committed is there once, whatever ends its writer; only the latest term writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import StaleTermError, TargetError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.events import MESSAGE, Events
from penstock.streams.file import FileTarget, committed_lines, lines_of
from penstock.streams.publisher import Standing, Term


def events(*values: bytes | None, first: int = 1, kind: int = ord("c"), key: bytes = b"[1]") -> Events:
    count = len(values)
    return Events(
        StreamId("public", "orders"),
        "shop.public.orders",
        np.arange(first, first + count, dtype=np.int64),
        np.zeros(count, np.int64),
        np.full(count, kind, np.uint8),
        np.full(count, 700, np.int64),
        pa.array([key] * count, pa.binary()),
        pa.array(values, pa.binary()),
    )


def term(epoch: int) -> Term:
    return Term("shop", Lsn(epoch), "system", 1)


def standing(position: int, epoch: int, **loads: Any) -> Standing:
    return Standing(Lsn(position), Lsn(epoch), "system", 1, loads)


def opened(path: Path, epoch: int) -> FileTarget:
    target = FileTarget(path)
    target.open(term(epoch))
    return target


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "below" / "changes.ndjson"


def offsets(path: Path) -> list[str]:
    return [line["offset"] for line in committed_lines(path)]


def test_a_new_file_holds_nothing_of_the_lane(path: Path) -> None:
    assert FileTarget(path).open(term(1)) is None


def test_events_are_seen_with_their_commit_and_not_before(path: Path) -> None:
    target = opened(path, 1)
    target.write(events(b"{}", None))
    assert offsets(path) == []
    target.commit(standing(10, 1))
    assert offsets(path) == ["1_0", "2_0"]
    target.write(events(b"{}", first=3))
    target.abort()
    target.write(events(b"{}", first=4))
    target.commit(standing(20, 1))
    assert offsets(path) == ["1_0", "2_0", "4_0"]
    target.close()


def test_what_a_crash_left_behind_the_last_commit_is_gone_for_the_next_term(path: Path) -> None:
    target = opened(path, 1)
    target.write(events(b"{}"))
    target.commit(standing(10, 1, orders={"point": "0/5"}))
    target.write(events(b'{"a": 1}', first=2))
    target.close()  # without a commit, as a kill does
    again = FileTarget(path)
    found = again.open(term(2))
    assert found == standing(10, 1, orders={"point": "0/5"})
    again.write(events(b"{}", first=3))
    again.commit(standing(30, 2))
    assert offsets(path) == ["1_0", "3_0"]
    again.close()


@given(cut=st.integers(0, 400), count=st.integers(0, 3), wide=st.booleans())
def test_a_commit_whose_line_was_cut_has_not_happened(
    tmp_path_factory: pytest.TempPathFactory, cut: int, count: int, wide: bool
) -> None:
    path = tmp_path_factory.mktemp("file") / "f"
    target = opened(path, 1)
    target.write(events(*[b"9" * 3_000 if wide else b"{}"] * count))
    target.commit(standing(10, 1))
    whole = path.stat().st_size
    target.write(events(b"{}", first=8))
    target.commit(standing(20, 1, many={str(n): "x" * 50 for n in range(2_000 if wide else 1)}))
    target.close()
    size = path.stat().st_size
    with open(path, "rb+") as file:
        file.truncate(max(whole, size - cut))
    found = FileTarget(path).open(term(2))
    assert found is not None
    assert found.position == (20 if cut == 0 else 10)
    assert len(offsets(path)) == count + (cut == 0)


def test_an_earlier_term_writes_nothing_once_a_later_one_has_opened(path: Path) -> None:
    first = opened(path, 1)
    first.commit(standing(5, 1))
    second = opened(path, 2)
    with pytest.raises(StaleTermError):
        first.write(events(b"{}"))
    second.write(events(b"{}"))
    second.commit(standing(10, 2))
    with pytest.raises(StaleTermError):
        first.commit(standing(11, 1))
    with pytest.raises(StaleTermError):
        FileTarget(path).open(term(1))
    assert offsets(path) == ["1_0"]
    for target in (first, second):
        target.close()


def test_a_leader_at_another_server_is_not_judged_by_the_epochs_of_the_first(path: Path) -> None:
    first = opened(path, 9)
    first.commit(standing(50, 9))
    first.close()
    target = FileTarget(path)
    assert target.open(Term("shop", Lsn(2), "another system", 1)) == standing(50, 9)
    target.commit(Standing(Lsn(3), Lsn(2), "another system", 1))
    target.close()


def test_a_file_that_was_taken_away_is_not_written_on(path: Path) -> None:
    target = opened(path, 1)
    target.commit(standing(5, 1))
    path.rename(path.with_suffix(".old"))
    with pytest.raises(StaleTermError):
        target.write(events(b"{}"))
    target.close()


def test_while_another_one_writes_it_is_to_be_tried_again(path: Path) -> None:
    writing = opened(path, 1)
    writing.write(events(b"{}"))
    with pytest.raises(TargetError, match="Another process"):
        FileTarget(path).open(term(2))
    writing.close()


def test_a_place_that_cannot_be_written_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError) as caught:
        FileTarget(tmp_path / "file" / "below").open(term(1))
    assert caught.value.remedy


def test_every_line_is_one_document_whatever_the_values_hold() -> None:
    lines = bytes(lines_of(events(b'{"a":\n[1,\r\n2]}', None, '{"b": "ä"}'.encode()))).decode().splitlines()
    documents = [json.loads(line) for line in lines]
    assert [each["value"] for each in documents] == [{"a": [1, 2]}, None, {"b": "ä"}]
    assert documents[0] == {
        "route": "shop.public.orders",
        "offset": "1_0",
        "kind": "c",
        "key": [1],
        "value": {"a": [1, 2]},
    }


def test_messages_may_be_of_any_bytes() -> None:
    made = events(b'{"a": 1}', b"plain\ntext", b"\xff\x00", None, kind=MESSAGE, key=b"a prefix")
    exact = bytes(lines_of(events(b"1.00000000000000000001", b"NaN", kind=MESSAGE)))
    assert b'"value": 1.00000000000000000001}' in exact
    assert b'"value": "NaN"}' in exact
    documents = [json.loads(line) for line in bytes(lines_of(made)).splitlines()]
    assert [each["value"] for each in documents] == [{"a": 1}, "plain\ntext", {"base64": "/wA="}, None]
    assert {each["key"] for each in documents} == {"a prefix"}


def test_slices_and_nothing_are_their_own_lines() -> None:
    made = events(b"1", b"2", b"3")
    assert [json.loads(line)["value"] for line in bytes(lines_of(made.slice(1, 3))).splitlines()] == [2, 3]
    assert bytes(lines_of(made.slice(1, 1))) == b""
