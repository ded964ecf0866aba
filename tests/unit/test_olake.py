"""What an OLake state file proves about each stream, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.position import Lsn
from penstock.ledger.olake import ImportedStream, imported_streams, selected_streams


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
