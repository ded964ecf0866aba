"""What an OLake state file proves about each stream, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.dialect import SourceName
from penstock.ledger.load_record import LoadPoint
from penstock.ledger.olake import ImportedStream, imported_file, imported_streams, selected_streams
from penstock.ledger.state import StateDocument
from penstock.ledger.takeover import Wanted, plan_take_over


def entry(name: str, **state: Any) -> dict[str, Any]:
    return {"stream": name, "namespace": "public", "sync_mode": "cdc", "state": state}


def file(*entries: dict[str, Any], streams: list[str] | None = None, **state: Any) -> dict[str, Any]:
    names = [f"public.{each['stream']}" for each in entries] if streams is None else streams
    return {"type": "GLOBAL", "global": {"state": state, "streams": names}, "streams": list(entries)}


def only(raw: dict[str, Any]) -> ImportedStream:
    [stream] = imported_streams(raw)
    return stream


def test_a_complete_stream_stands_at_the_global_position() -> None:
    stream = only(file(entry("a", chunks=[]), lsn="2D9/AD00445A"))
    assert stream.position == Lsn.parse("2D9/AD00445A")
    assert not stream.in_doubt


def test_a_strict_stream_without_an_entry_stands_there_too() -> None:
    assert only(file(streams=["public.a"], lsn="0/10")).position == Lsn(16)


def test_a_load_with_chunks_left_stands_nowhere() -> None:
    chunks = [{"min": "'(0,0)'", "max": "'(128,0)'"}, {"min": 10001, "max": None, "status": "preparing"}]
    stream = only(file(entry("a", chunks=chunks), lsn="0/10"))
    assert (stream.position, stream.chunks_left) == (None, 2)


def test_a_stream_outside_the_global_ones_stands_nowhere() -> None:
    assert only(file(entry("a", chunks=[]), streams=[], lsn="0/10")).position is None


def test_in_an_open_round_only_those_still_processing_are_in_doubt() -> None:
    raw = file(
        entry("a", chunks=[]), entry("b", chunks=[]), lsn="0/10", next_cdc_pos="0/20", processing=["public.b"]
    )
    a, b = imported_streams(raw)
    assert (a.position, a.in_doubt) == (Lsn(32), False)
    assert (b.position, b.in_doubt) == (Lsn(16), True)


def test_a_round_that_was_only_not_cleaned_up_counts_as_done() -> None:
    assert only(file(entry("a", chunks=[]), lsn="0/10", next_cdc_pos="0/20")).position == Lsn(32)


def test_cursors_are_named_and_temporary_ones_are_not() -> None:
    raw = {
        "type": "STREAM",
        "streams": [
            {
                **entry("a", chunks=[], updated_at="2024-01-15T10:30:00Z", olake_next_cursor_updated_at="x"),
                "sync_mode": "incremental",
            }
        ],
    }
    assert only(raw).cursors == ("updated_at",)
    assert only(raw).position is None


def test_the_selected_streams_say_how_they_were_written() -> None:
    selected = {"public": [{"stream_name": "a", "append_mode": True}, {"stream_name": "b"}]}
    expected = {"public.a": "append", "public.b": "upsert"}
    assert selected_streams({"selected_streams": selected}) == expected
    assert selected_streams({"type": "CATALOG", "catalog": {"selected_streams": selected}}) == expected
    with pytest.raises(ValueError, match="selected_streams"):
        selected_streams({})


# MySQL


def mysql(*entries: dict[str, Any], **state: Any) -> dict[str, Any]:
    return file(*entries, server_id=1234567890, state={"name": "bin.000070", "pos": 500}, **state)


def at(text: str) -> tuple[Lsn, Place]:
    return Lsn(BinlogPlace.parse(text).number), Place(text)


def test_a_stream_of_mysql_stands_at_the_binlog_place() -> None:
    stream = only(mysql(entry("a", chunks=[])))
    assert (stream.position, stream.place) == at("bin.000070:500")
    assert not stream.in_doubt


@pytest.mark.parametrize("nested", [True, False])
def test_older_files_of_mysql_say_it_too(nested: bool) -> None:
    position = {"position": {"Name": "bin.000070", "Pos": 500}}
    section: dict[str, Any] = {"state": {"server_id": 9, "state": position}}
    if not nested:
        section = {"server_id": 9, "state": position}
    raw = {"global": {**section, "streams": ["public.a"]}, "streams": [entry("a", chunks=[])]}
    found = imported_file(raw)
    assert (found.source, found.server_id) == ("mysql", 9)
    assert [(each.position, each.place) for each in found.streams] == [at("bin.000070:500")]


def test_in_an_open_round_of_mysql_only_those_still_processing_are_in_doubt() -> None:
    raw = mysql(
        entry("a", chunks=[]), entry("b", chunks=[]), next_cdc_pos="bin.000071:4", processing=["public.b"]
    )
    a, b = imported_streams(raw)
    assert (a.position, a.place, a.in_doubt) == (*at("bin.000071:4"), False)
    assert (b.position, b.place, b.in_doubt) == (*at("bin.000070:500"), True)


def test_a_round_of_mysql_that_was_only_not_cleaned_up_counts_as_done() -> None:
    assert only(mysql(entry("a", chunks=[]), next_cdc_pos="bin.000071:4")).place == Place("bin.000071:4")


def test_a_load_of_mysql_with_chunks_left_stands_nowhere() -> None:
    stream = only(mysql(entry("a", chunks=[{"min": 1, "max": 2}])))
    assert (stream.position, stream.place, stream.chunks_left) == (None, None, 1)


# MongoDB

TOKEN, LATER = "82673F82FE000000022B0429296E1404", "82673F8311000000012B0429296E1404"


def mongodb(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"type": "STREAM", "streams": list(entries)}


def test_a_stream_of_mongodb_stands_at_its_own_token() -> None:
    a, b = imported_streams(mongodb(entry("a", _data=TOKEN, chunks=[]), entry("b", _data=LATER)))
    assert (a.position, a.place, a.in_doubt) == (Lsn(0x673F82FE << 32 | 2), Place(TOKEN), False)
    assert (b.position, b.place, b.in_doubt) == (Lsn(0x673F8311 << 32 | 1), Place(LATER), False)
    assert a.cursors == ()


def test_a_stream_of_mongodb_with_an_open_round_is_in_doubt_and_others_are_not() -> None:
    a, b = imported_streams(
        mongodb(entry("a", _data=TOKEN, next_data=LATER, chunks=[]), entry("b", _data=TOKEN, chunks=[]))
    )
    assert (a.place, a.in_doubt) == (Place(TOKEN), True)
    assert (b.place, b.in_doubt) == (Place(TOKEN), False)


def test_a_load_of_mongodb_with_chunks_left_stands_nowhere() -> None:
    assert only(mongodb(entry("a", _data=TOKEN, chunks=[{"min": "a", "max": None}]))).position is None


# What becomes of each stream

A, B, C = (StreamId("public", name) for name in "abc")


def wanted(mode: str, write: str = "upsert") -> list[Wanted]:
    return [Wanted(stream, mode, write) for stream in (A, B)]


FILES: list[tuple[SourceName, dict[str, Any], str]] = [
    ("postgres", file(entry("a", chunks=[]), lsn="46/1F4"), "46/1F4"),
    ("mysql", mysql(entry("a", chunks=[])), "bin.000070:500"),
    ("mongodb", mongodb(entry("a", _data=TOKEN, chunks=[])), TOKEN),
]
sources = pytest.mark.parametrize(("source", "raw", "place"), FILES)


@sources
def test_a_strict_stream_carries_on_at_its_place(source: SourceName, raw: dict[str, Any], place: str) -> None:
    plan = plan_take_over(
        imported_file(raw), source, wanted("strict_cdc"), {str(A): "append", str(C): "upsert"}
    )
    assert list(plan.carried) == [A]
    assert plan.carried[A].place == Place(place)
    assert [each.to_json() for each in plan.told] == [
        {
            "stream": "public.a",
            "action": "carries on",
            "detail": f"empty, from {place}; `append` there, `upsert` here",
        },
        {"stream": "public.b", "action": "begins with the next sync", "detail": "OLake did not follow it"},
        {"stream": "public.c", "action": "is left out", "detail": "the pipeline file has no such stream"},
    ]
    assert plan.document.source == source
    assert plan.document.streams == ()
    written = StateDocument(plan.document.to_json())
    assert written == plan.document
    if source == "mysql":
        assert written.to_json()["global"]["state"]["server_id"] == 1234567890


@sources
@pytest.mark.parametrize("mode", ["cdc", "incremental", "full_refresh"])
def test_every_other_mode_is_loaded_anew(
    source: SourceName, raw: dict[str, Any], place: str, mode: str
) -> None:
    plan = plan_take_over(imported_file(raw), source, wanted(mode), {})
    assert plan.carried == {}
    assert [each.action for each in plan.told] == ["is loaded anew", "is loaded anew"]


@pytest.mark.parametrize(
    ("source", "raw"),
    [
        ("postgres", file(entry("a", chunks=[]), lsn="0/10", next_cdc_pos="0/20", processing=["public.a"])),
        ("mysql", mysql(entry("a", chunks=[]), next_cdc_pos="bin.000071:4", processing=["public.a"])),
        ("mongodb", mongodb(entry("a", _data=TOKEN, next_data=LATER, chunks=[]))),
    ],
)
def test_a_stream_in_doubt_does_not_carry_on(source: SourceName, raw: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="in the middle of a round"):
        plan_take_over(imported_file(raw), source, wanted("strict_cdc"), {})
    assert plan_take_over(imported_file(raw), source, wanted("cdc"), {}).carried == {}


@pytest.mark.parametrize(
    ("source", "raw"),
    [
        ("postgres", file(entry("a", chunks=[{"min": None, "max": 9}]), lsn="0/10")),
        ("mysql", mysql(entry("a", chunks=[{"min": None, "max": 9}]))),
        ("mongodb", mongodb(entry("a", _data=TOKEN, chunks=[{"min": None, "max": "b"}]))),
    ],
)
def test_a_stream_whose_load_was_not_done_does_not_carry_on(source: SourceName, raw: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="1 chunks of its load left") as refused:
        plan_take_over(imported_file(raw), source, wanted("strict_cdc"), {})
    assert refused.value.stream == "public.a"
    [told, _] = plan_take_over(imported_file(raw), source, wanted("cdc"), {}).told
    assert "1 chunks that OLake had left are read with the others" in told.detail


@sources
def test_a_file_of_another_kind_of_source_is_refused(
    source: SourceName, raw: dict[str, Any], place: str
) -> None:
    for other, _, _ in FILES:
        if other != source:
            with pytest.raises(StateError, match="and the pipeline file names"):
                plan_take_over(imported_file(raw), other, wanted("cdc"), {})


def test_the_words_of_a_point_are_kept_with_its_load() -> None:
    position, place = at("bin.000070:500")
    with_words, without = LoadPoint(position, "", place), LoadPoint(Lsn(5), "00000003-1")
    assert LoadPoint.from_json(with_words.to_json()) == with_words
    assert without.to_json() == {"consistent_point": "0/5", "snapshot": "00000003-1"}
    assert LoadPoint.from_json(without.to_json()) == without
