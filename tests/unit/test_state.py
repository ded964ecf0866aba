"""The state document: format, omission rules, foreign fields, checks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import state_json, two_phase
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.state_check import problems

ORDERS = StreamId("public", "orders")
ITEMS = StreamId("public", "items")


def foreign_file() -> dict[str, Any]:
    """A file as another tool left it in the middle of a round, with fields we do not know."""
    return {
        "type": "GLOBAL",
        "version": 4,
        "their_own": {"deep": [1, {"er": None}]},
        "global": {
            "state": {
                "lsn": "2D9/AD00445A",
                "next_cdc_pos": "2D9/AD005000",
                "processing": ["public.orders", "public.items"],
                "comment": "kept",
            },
            "streams": ["public.orders", "public.items"],
            "note": 1,
        },
        "streams": [
            {"stream": "orders", "namespace": "public", "sync_mode": "cdc", "x": [], "state": {"chunks": []}},
            {
                "stream": "items",
                "namespace": "public",
                "sync_mode": "cdc",
                "state": {"chunks": [{"min": 1, "max": 9, "status": "preparing", "hint": "h"}], "y": ""},
            },
        ],
    }


def test_a_file_of_another_tool_is_read() -> None:
    document = StateDocument(foreign_file())
    assert document.type == "GLOBAL"
    assert document.lsn == Lsn.parse("2D9/AD00445A")
    assert document.next_cdc_pos == Lsn.parse("2D9/AD005000")
    assert document.processing == (ORDERS, ITEMS)
    assert document.global_streams == (ORDERS, ITEMS)
    orders = document.stream(ORDERS)
    assert orders is not None
    assert orders.has_completed_backfill
    items = document.stream(ITEMS)
    assert items is not None
    assert items.chunks == (Chunk(1, 9),)
    assert items.chunks[0].preparing
    assert problems(document) == []


def test_foreign_fields_survive_every_move() -> None:
    document = StateDocument(foreign_file())
    for stream in (ORDERS, ITEMS):
        document = two_phase.stream_committed(document, stream, Lsn.parse("2D9/AD005000"))
    document = two_phase.finish_round(document)
    document = two_phase.load_done(document, ITEMS, Lsn.parse("2D9/AD005000"))
    raw = document.to_json()
    assert raw["version"] == 4
    assert raw["their_own"] == {"deep": [1, {"er": None}]}
    assert raw["global"]["note"] == 1
    assert raw["global"]["state"] == {"lsn": "2D9/AD005000", "comment": "kept"}
    assert raw["streams"][0]["x"] == []
    assert raw["streams"][1]["state"]["y"] == ""


def test_foreign_fields_of_a_chunk_survive_its_pick_up() -> None:
    raw = foreign_file()
    raw["streams"][1]["state"]["chunks"].append({"min": 9, "max": None, "theirs": 3})
    document = two_phase.chunks_preparing(StateDocument(raw), ITEMS, [Chunk(9, None)])
    assert document.to_json()["streams"][1]["state"]["chunks"] == [
        {"min": 1, "max": 9, "status": "preparing", "hint": "h"},
        {"min": 9, "max": None, "theirs": 3, "status": "preparing"},
    ]


@pytest.mark.parametrize("declared", ["STREAM", "GLOBAL", None])
def test_the_type_is_decided_by_the_presence_of_global(declared: str | None) -> None:
    with_global: dict[str, Any] = {"type": declared, "global": {"state": {}, "streams": []}, "streams": []}
    assert StateDocument(with_global).type == "GLOBAL"
    assert StateDocument(with_global).draft().done().to_json()["type"] == "GLOBAL"
    assert StateDocument({"type": declared, "streams": []}).type == "STREAM"
    assert StateDocument({"type": declared, "global": None, "streams": None}).streams == ()


@pytest.mark.parametrize("empty", [None, "", []])
def test_empty_temporary_fields_are_omitted_and_empty_chunks_are_written(empty: object) -> None:
    raw = {
        "type": "GLOBAL",
        "global": {"state": {"lsn": "0/1", "next_cdc_pos": empty, "processing": empty}, "streams": []},
        "streams": [
            {
                "stream": "orders",
                "namespace": "public",
                "sync_mode": "cdc",
                "state": {
                    "chunks": [],
                    "next_cdc_pos": empty,
                    "next_data": empty,
                    "olake_next_cursor_id": empty,
                },
            },
            {"stream": "s", "namespace": "n", "state": {"chunks": [{"min": 1, "max": 2, "status": empty}]}},
        ],
    }
    written = StateDocument(raw).draft().done().to_json()
    assert written["global"]["state"] == {"lsn": "0/1"}
    assert written["streams"][0]["state"] == {"chunks": []}
    assert written["streams"][1]["state"] == {"chunks": [{"min": 1, "max": 2}]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_what_is_read_is_written_again(value: dict[str, Any]) -> None:
    assert state_json.decode(state_json.encode(value)) == value


@pytest.mark.parametrize("number", ["0.12345678901234567890", "1e400", "1.10", "-0.0", "9223372036854775807"])
def test_numbers_keep_every_digit(number: str) -> None:
    content = f'{{"a": [{number}], "b": "{number}"}}'.encode()
    written = state_json.encode(state_json.decode(content)).decode()
    assert "".join(written.split()) == f'{{"a":[{number}],"b":"{number}"}}'


def test_a_document_does_not_change_when_its_json_is_changed() -> None:
    raw = foreign_file()
    document = StateDocument(raw)
    raw["global"]["state"]["lsn"] = "0/0"
    document.to_json()["global"]["state"]["lsn"] = "0/0"
    document.draft().global_state()["lsn"] = "0/0"
    assert document.lsn == Lsn.parse("2D9/AD00445A")


def test_the_epoch_of_a_state_never_goes_back() -> None:
    """Tables refuse an earlier leader, and a state that named it would be taken for left behind."""
    document = StateDocument.new().identified(system_id="7", timeline=1, epoch=Lsn(100))
    assert document.identified(system_id="7", timeline=1, epoch=Lsn(100)).epoch == Lsn(100)
    with pytest.raises(StateError, match="a later leader"):
        document.identified(system_id="7", timeline=1, epoch=Lsn(99))


def test_a_position_that_is_none_is_a_clear_error() -> None:
    document = StateDocument({"global": {"state": {"lsn": "yesterday"}, "streams": []}, "streams": []})
    with pytest.raises(StateError, match=r"`lsn`.*not a log position") as caught:
        _ = document.lsn
    assert "state check" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda raw: raw.update(type="STREAM"), "type is 'STREAM'"),
        (lambda raw: raw.update(penstock={"format_version": 99}), "format_version is 99"),
        (lambda raw: raw["streams"].append(raw["streams"][0]), "public.orders: listed twice"),
        (lambda raw: raw["global"]["state"].pop("next_cdc_pos"), "there is no next_cdc_pos"),
        (lambda raw: raw["global"]["state"].pop("lsn"), "there is no lsn"),
        (lambda raw: raw["global"]["state"].update(next_cdc_pos="0/1"), "is before lsn"),
        (lambda raw: raw["global"]["state"].update(lsn="x"), "not a log position"),
        (lambda raw: raw["global"]["state"].update(processing=["public.other"]), "not in global.streams"),
        (lambda raw: raw["global"]["state"].update(processing=["nodot"]), "not of the form"),
        (
            lambda raw: raw["global"].update(streams=["public.none", "public.orders", "public.items"]),
            "no entry",
        ),
        (lambda raw: raw["streams"][0].update(sync_mode="sometimes"), "sync_mode 'sometimes'"),
        (lambda raw: raw["streams"][0]["state"].update(cdc_from="0/1"), "at the same time"),
        (lambda raw: raw["streams"][0]["state"].update(next_cdc_pos=None), "should be omitted"),
        (lambda raw: raw["streams"][0]["state"].update(next_cdc_pos="0/5"), "there is no cdc_from"),
        (lambda raw: raw["streams"][1]["state"]["chunks"][0].pop("min"), "no min"),
        (lambda raw: raw["streams"][1]["state"]["chunks"][0].update(status="half"), "status 'half'"),
    ],
)
def test_state_check_names_what_is_wrong(change: Any, expected: str) -> None:
    raw = foreign_file()
    change(raw)
    found = problems(StateDocument(raw))
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    "text",
    ['{"streams": 5}', '{"global": []}', '{"streams": [1]}', '{"streams": [{"state": {"chunks": [1]}}]}'],
)
def test_another_layout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        StateDocument(json.loads(text))
