"""One ledger, three dialects: what is common to all of them, and that Postgres' files are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import state_json, two_phase
from penstock.ledger.dialect import PlaceOf, SourceName
from penstock.ledger.ledger import Ledger
from penstock.ledger.rebase import rebased
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.store import StateStore

FIXTURE = Path(__file__).parents[1] / "fixtures" / "format-1" / "state"
A, B = StreamId("shop", "a"), StreamId("shop", "b")
OTHERS: tuple[SourceName, ...] = ("mysql", "mongodb")
START = Lsn(70 << 32 | 500)


PLACES: dict[SourceName, PlaceOf] = {
    "mysql": lambda position: Place(str(BinlogPlace.of_number("bin", int(position))), "0-1-5"),
    "mongodb": lambda position: Place(f"82{int(position):016X}2B0429296E1404"),
}


def following(
    source: SourceName, *streams: StreamId, at: Lsn = START, document: StateDocument | None = None
) -> StateDocument:
    document = document or StateDocument.new("p", source)
    for stream in streams:
        document = two_phase.plan_load(
            document, stream, sync_mode="cdc", load_id="l", generation="g", chunks=[Chunk(None, None)]
        )
        document = two_phase.load_done(document, stream, at)
    return document if source == "postgres" else document.placed(PLACES[source])


def test_a_file_of_postgres_is_written_byte_for_byte_as_it_was_read() -> None:
    files = [FIXTURE / "state.json", *sorted((FIXTURE / "state.history").glob("*.json"))]
    assert len(files) == 3
    for file in files:
        raw = state_json.decode(file.read_bytes())
        document = StateDocument(raw)
        assert document.source == "postgres"
        assert state_json.encode(document.to_json()) == state_json.encode(raw)
        assert state_json.encode(document.draft().done().to_json()) == state_json.encode(raw)


def test_a_state_of_postgres_does_not_say_so() -> None:
    assert set(StateDocument.new("p").numbered(1).to_json()["penstock"]) == {
        "format_version",
        "pipeline_id",
        "state_version",
    }


@pytest.mark.parametrize("source", OTHERS)
def test_a_state_says_which_source_it_is_of(source: SourceName) -> None:
    document = StateDocument.new("p", source)
    assert document.to_json()["penstock"]["source"] == source
    assert StateDocument(document.to_json()).source == source


def test_a_file_of_another_tool_is_known_by_its_layout_until_it_is_ours() -> None:
    mysql = {"global": {"state": {"server_id": 1, "state": {"name": "bin.000001", "pos": 4}}, "streams": []}}
    mongodb = {
        "streams": [{"stream": "a", "namespace": "shop", "state": {"_data": PLACES["mongodb"](START).text}}]
    }
    postgres = {"global": {"state": {"lsn": "0/1"}, "streams": []}}
    for raw, source in ((mysql, "mysql"), (mongodb, "mongodb"), (postgres, "postgres"), ({}, "postgres")):
        document = StateDocument(raw)
        assert document.source == source
        saved = StateDocument(document.numbered(1).to_json())
        assert saved.source == source
        assert saved.to_json()["penstock"].get("source", "postgres") == source


def test_a_source_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="'oracle'"):
        StateDocument({"penstock": {"source": "oracle"}, "streams": []})


@pytest.mark.parametrize("source", OTHERS)
def test_an_empty_state_may_become_one_of_any_source(source: SourceName) -> None:
    document = StateDocument.new("p").of_source(source)
    assert StateDocument(document.to_json()).source == source
    assert document.of_source(source) is document
    assert document.of_source("postgres") == StateDocument.new("p")


@pytest.mark.parametrize("source", OTHERS)
def test_positions_of_one_source_are_not_those_of_another(source: SourceName) -> None:
    with pytest.raises(StateError, match=f"that of a {source} source, and the pipeline file names postgres"):
        following(source, A).of_source("postgres")


@pytest.mark.parametrize("source", OTHERS)
def test_the_ledger_asks_for_words_of_new_positions_only(source: SourceName, tmp_path: Path) -> None:
    asked: list[Lsn] = []

    def place(position: Lsn) -> Place:
        asked.append(position)
        return PLACES[source](position)

    ledger = Ledger(StateStore(tmp_path), source, place)
    ledger.write(following(source, A, B, document=ledger.document))
    assert asked == []
    target = Lsn(START + 100)
    ledger.write(two_phase.prepare_stream_round(ledger.document, A, target))
    assert asked == [target]
    version = ledger.document.state_version
    ledger.write(ledger.document)
    ledger.write(two_phase.finish_stream_round(ledger.document, A))
    assert asked == [target]
    assert ledger.document.state_version == (version or 0) + 1
    opened = Ledger(StateStore(tmp_path), source)
    assert opened.document == ledger.document
    with pytest.raises(StateError, match="the pipeline file names postgres"):
        Ledger(StateStore(tmp_path))
    state = opened.document.stream(A)
    assert state is not None
    assert state.cdc_from == target


@pytest.mark.parametrize("source", OTHERS)
def test_loads_and_rounds_may_write_side_by_side(source: SourceName) -> None:
    base = StateDocument(following(source, A, B).numbered(1).to_json())
    load = two_phase.plan_load(
        base, A, sync_mode="cdc", load_id="two", generation="new", chunks=[Chunk(1, 2), Chunk(2, None)]
    )
    target = Lsn(START + 100)
    rounds = two_phase.prepare_stream_round(base, B, target).placed(PLACES[source])
    now = StateDocument(two_phase.finish_stream_round(rounds, B).to_json())
    both = rebased(two_phase.chunks_preparing(load, A, [Chunk(1, 2)]), now)
    a, b = both.stream(A), both.stream(B)
    assert a is not None
    assert b is not None
    assert (a.cdc_from, a.load_id, b.cdc_from) == (START, "two", target)
    assert both.source == source
    assert StateDocument(both.to_json()) == both


@pytest.mark.parametrize("source", OTHERS)
def test_a_kept_up_table_may_move_while_it_is_loaded_anew(source: SourceName) -> None:
    base = StateDocument(following(source, A).numbered(1).to_json())
    planned = two_phase.plan_load(
        base, A, sync_mode="cdc", load_id="two", generation="n", chunks=[Chunk(1, 2)]
    )
    now = StateDocument(planned.to_json())
    load = two_phase.chunks_preparing(now, A, [Chunk(1, 2)])
    moved = two_phase.prepare_stream_round(now, A, Lsn(START + 9)).placed(PLACES[source])
    moved = StateDocument(two_phase.finish_stream_round(moved, A).to_json())
    state = rebased(load, moved).stream(A)
    assert state is not None
    assert (state.cdc_from, state.chunks) == (START + 9, (Chunk(1, 2),))
    assert state.chunks is not None
    assert state.chunks[0].preparing


@pytest.mark.parametrize("source", OTHERS)
def test_an_earlier_version_is_brought_back_with_its_words(source: SourceName, tmp_path: Path) -> None:
    ledger = Ledger(StateStore(tmp_path), source, PLACES[source])
    ledger.write(following(source, A, document=ledger.document))
    before = ledger.document
    ledger.write(two_phase.pass_over(before, [A], Lsn(START + 7)))
    restored = StateStore(tmp_path).restore(before.state_version)
    state = restored.stream(A)
    assert state is not None
    assert state.cdc_from == START
    assert StateStore(tmp_path).load() == restored
