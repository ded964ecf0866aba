"""MongoDB's state: the contract's scenarios, file for file, and what recovery decides in each."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.core.stream import StreamId
from penstock.lake.places import cluster_mark
from penstock.ledger import pausing, recovery, state_json, two_phase
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.state_check import problems
from penstock.ledger.threads import cdc_thread_id

A, B, C = (StreamId("shop", f"collection_{number}") for number in (1, 2, 3))
# The contract's own tokens: of one cluster time, and still one behind the other.
FROM, TO = "82673F82FE000000022B0429296E1404", "82673F82FE000000022B0429296E1505"
TIME = Lsn(0x673F82FE << 32 | 2)
NEWEST = Lsn(TIME + 500)


def mark(position: Lsn) -> Place:
    """A high water mark as the log would have it for a position."""
    return Place(f"82{int(position):016X}2B0429296E1404")


def file(states: dict[StreamId, dict[str, Any]]) -> dict[str, Any]:
    """A file as the contract has it, of collections that we loaded."""
    return {
        "type": "STREAM",
        "streams": [
            {
                "stream": stream.name,
                "namespace": stream.namespace,
                "sync_mode": "cdc",
                "state": {**state, "penstock": {"generation": "g"}},
            }
            for stream, state in states.items()
        ],
    }


def tokens(document: StateDocument) -> dict[StreamId, dict[str, Any]]:
    """The contract's part of each stream's state, as it is written."""
    raw = document.to_json()
    assert raw["type"] == "STREAM"
    assert "global" not in raw
    return {
        StreamId(entry["namespace"], entry["stream"]): {
            name: entry["state"][name] for name in entry["state"] if name != "penstock"
        }
        for entry in raw["streams"]
    }


def read_again(document: StateDocument) -> StateDocument:
    return StateDocument(state_json.decode(state_json.encode(document.to_json())))


def committed(*streams: StreamId) -> recovery.IsThreadCommitted:
    ids = {cdc_thread_id(stream, "g", TIME) for stream in streams}
    return lambda stream, thread_id: thread_id in ids


STANDING = {"_data": FROM, "chunks": []}
OPEN = {"_data": FROM, "next_data": TO, "chunks": []}


def test_scenario_1_before_the_commit_next_data_is_set() -> None:
    document = two_phase.prepare_stream_round(StateDocument(file({A: STANDING})), A, NEWEST).placed(mark)
    assert tokens(document) == {A: {"_data": FROM, "next_data": mark(NEWEST).text, "chunks": []}}


def test_scenario_2_after_the_commit_it_is_moved_and_gone() -> None:
    document = two_phase.prepare_stream_round(StateDocument(file({A: STANDING})), A, NEWEST).placed(mark)
    document = two_phase.finish_stream_round(read_again(document), A)
    assert tokens(document) == {A: {"_data": mark(NEWEST).text, "chunks": []}}
    assert tokens(read_again(document)) == tokens(document)
    state = read_again(document).stream(A)
    assert state is not None
    assert (state.cdc_from, state.committed_to, state.next_cdc_pos) == (NEWEST, NEWEST, None)


def recover_each(
    document: StateDocument, streams: Iterable[StreamId], is_committed: recovery.IsThreadCommitted
) -> tuple[StateDocument, dict[StreamId, recovery.RoundRecovery]]:
    """The own rounds of these streams, one after the other; what was decided about those that were open."""
    found: dict[StreamId, recovery.RoundRecovery] = {}
    for stream in streams:
        decided = recovery.recover_stream_round(document, stream, is_committed)
        if decided.kind != "none":
            found[stream], document = decided, decided.document
    return document, found


@pytest.mark.parametrize(
    ("states", "held", "kinds", "after"),
    [
        pytest.param({A: STANDING}, [A], {}, {A: STANDING}, id="no next_data: no recovery"),
        pytest.param(
            {A: OPEN}, [A], {A: "finish"}, {A: {"_data": TO, "chunks": []}}, id="4: already committed: moved"
        ),
        pytest.param(
            {A: OPEN}, [], {A: "again"}, {A: STANDING}, id="3, 5: not committed: dropped, again from _data"
        ),
        pytest.param(
            {A: OPEN, B: STANDING},
            [],
            {A: "again"},
            {A: STANDING, B: STANDING},
            id="6: one is recovered, one needs none",
        ),
        pytest.param(
            {A: OPEN, B: OPEN},
            [B],
            {A: "again", B: "finish"},
            {A: STANDING, B: {"_data": TO, "chunks": []}},
            id="6: one forward, one back",
        ),
        pytest.param(
            {A: {**OPEN, "chunks": [{"min": 1, "max": 5}]}},
            [],
            {A: "again"},
            {A: {**STANDING, "chunks": [{"min": 1, "max": 5}]}},
            id="a stream that still has chunks keeps them beside _data",
        ),
        pytest.param(
            {A: {"_data": FROM, "next_data": TO}},
            [A],
            {A: "finish"},
            {A: {"_data": TO}},
            id="never had chunks",
        ),
    ],
)
def test_recovery(
    *,
    states: dict[StreamId, dict[str, Any]],
    held: list[StreamId],
    kinds: dict[StreamId, str],
    after: dict[StreamId, dict[str, Any]],
) -> None:
    document = StateDocument(file(states))
    assert tokens(document) == states
    recovered, found = recover_each(document, states, committed(*held))
    assert {stream: each.kind for stream, each in found.items()} == kinds
    assert all(each.start == TIME for each in found.values())
    assert tokens(recovered) == after
    again, nothing = recover_each(read_again(recovered), states, committed(*held))
    assert (nothing, tokens(again)) == ({}, after)
    assert recovery.recover_round(document, set(states), committed()).kind == "none"


def test_a_round_that_is_done_again_has_the_newest_target_and_the_same_thread() -> None:
    found = recovery.recover_stream_round(StateDocument(file({A: OPEN})), A, committed())
    assert (found.kind, found.streams, found.start, found.to) == ("again", (A,), TIME, None)
    document = two_phase.prepare_stream_round(read_again(found.document), A, NEWEST).placed(mark)
    assert tokens(document)[A]["next_data"] == mark(NEWEST).text
    finished = recovery.recover_stream_round(read_again(document), A, committed(A))
    assert tokens(finished.document) == {A: {"_data": mark(NEWEST).text, "chunks": []}}


def test_every_mixture_of_streams_is_decided_stream_by_stream() -> None:
    """Each of three streams stands, is open and not committed, or is open and committed."""
    for fates in product(("stands", "open", "held"), repeat=3):
        fate = dict(zip((A, B, C), fates, strict=True))
        states = {stream: STANDING if what == "stands" else OPEN for stream, what in fate.items()}
        held = [stream for stream in fate if fate[stream] == "held"]
        document, found = recover_each(StateDocument(file(states)), fate, committed(*held))
        assert {s: each.kind for s, each in found.items()} == {
            s: "finish" if fate[s] == "held" else "again" for s in fate if fate[s] != "stands"
        }
        assert tokens(read_again(document)) == {
            s: {"_data": TO, "chunks": []} if fate[s] == "held" else STANDING for s in fate
        }


def test_a_stream_of_another_generation_is_not_taken_for_committed() -> None:
    old = cdc_thread_id(A, "before", TIME)
    document = StateDocument(file({A: OPEN}))
    assert recovery.recover_stream_round(document, A, lambda stream, thread: thread == old).kind == "again"


def test_a_file_of_another_tool_is_never_taken_for_committed_here() -> None:
    raw = file({A: OPEN})
    del raw["streams"][0]["state"]["penstock"]
    assert recovery.recover_stream_round(StateDocument(raw), A, lambda stream, thread: True).kind == "again"


# Each stream for itself


def test_streams_never_share_a_position() -> None:
    document = StateDocument(file({A: STANDING, B: STANDING}))
    for stream in (A, B):
        assert two_phase.join_global(document, stream) == document
    with pytest.raises(ValueError, match="global position"):
        two_phase.prepare_round(document, NEWEST, [A])
    assert two_phase.flushed_position(document, []) == TIME


def test_streams_are_as_far_as_the_one_that_is_furthest_behind_and_not_paused() -> None:
    document = StateDocument(file({A: STANDING, B: {"_data": mark(NEWEST).text}, C: {}}))
    assert document.level == TIME
    paused = pausing.paused(document, A, since="", reason="", sync_mode="cdc")
    assert paused.level == NEWEST
    assert StateDocument(file({C: {}})).level is None


def test_the_words_of_a_position_are_a_mark_of_its_time() -> None:
    document = two_phase.prepare_stream_round(StateDocument(file({A: STANDING})), A, NEWEST)
    [written] = tokens(document.placed(cluster_mark)).values()
    token = ResumeToken(written["next_data"])
    assert (token.kind, token.time, token.position_behind) == ("mark", NEWEST, NEWEST)


def test_an_idle_stream_moves_with_the_others_so_that_its_token_does_not_expire() -> None:
    document = StateDocument(file({A: STANDING, B: OPEN, C: {"_data": mark(NEWEST).text}}))
    document = two_phase.pass_over(document, [A, B, C], NEWEST).placed(mark)
    assert tokens(read_again(document)) == {
        A: {"_data": mark(NEWEST).text, "chunks": []},
        B: OPEN,
        C: {"_data": mark(NEWEST).text},
    }
    state = document.stream(A)
    assert state is not None
    assert state.committed_to is None
    assert two_phase.pass_over(document, [A], TIME) == document
    with pytest.raises(ValueError, match="without a position"):
        two_phase.pass_over(StateDocument(file({A: {"chunks": []}})), [A], NEWEST)


def test_a_token_behind_a_transaction_is_numbered_behind_it() -> None:
    """An event's token has the time of its transaction; the place behind the whole of it is one more."""
    event = Place(
        "82673F83110000000A2B042C0100296E5A1004A5093ABB38FE4B9EA67F01BB1A96D812463C5F6964003C5F5F5F78000004"
    )
    behind = Lsn((0x673F8311 << 32 | 10) + 1)
    document = two_phase.prepare_stream_round(StateDocument(file({A: STANDING})), A, behind)
    document = read_again(document.placed(lambda position: event))
    state = document.stream(A)
    assert state is not None
    assert state.next_cdc_pos == behind
    document = read_again(two_phase.finish_stream_round(document, A))
    assert tokens(document)[A]["_data"] == event.text
    state = document.stream(A)
    assert state is not None
    assert state.cdc_from == behind


def test_tokens_of_one_time_stay_with_their_streams() -> None:
    """Two streams of another tool may stand inside one transaction, at different places of one number."""
    document = StateDocument(file({A: {"_data": FROM}, B: {"_data": TO}}))
    assert [state.cdc_from for state in document.stream_states] == [TIME, TIME]
    assert tokens(read_again(document)) == {A: {"_data": FROM}, B: {"_data": TO}}


def test_a_load_ends_at_a_token_of_its_own() -> None:
    document = StateDocument.new("p", "mongodb")
    document = two_phase.plan_load(
        document, A, sync_mode="cdc", load_id="l", generation="g", chunks=[Chunk(None, None)]
    )
    assert read_again(document) == document
    done = read_again(two_phase.load_done(document, A, NEWEST).placed(mark))
    assert tokens(done) == {A: {"chunks": [], "_data": mark(NEWEST).text}}
    assert done.source == "mongodb"


# The format


def test_a_position_is_written_as_its_token_and_its_number_beside_it() -> None:
    document = two_phase.prepare_stream_round(StateDocument(file({A: STANDING})), A, NEWEST).placed(mark)
    assert document.to_json()["streams"][0]["state"] == {
        "_data": FROM,
        "chunks": [],
        "next_data": mark(NEWEST).text,
        "penstock": {
            "generation": "g",
            "places": {"_data": {"position": "673F82FE/2"}, "next_data": {"position": "673F82FE/1F6"}},
        },
    }


@pytest.mark.parametrize("empty", [None, "", []])
def test_empty_next_data_is_omitted(empty: object) -> None:
    document = StateDocument(file({A: {**STANDING, "next_data": empty}}))
    assert recovery.recover_stream_round(document, A, committed()).kind == "none"
    assert tokens(document.draft().done()) == {A: STANDING}


def test_foreign_fields_survive_every_move() -> None:
    raw = file({A: {**STANDING, "theirs": [1]}})
    raw["version"] = 3
    raw["streams"][0]["x"] = {"deep": None}
    document = two_phase.prepare_stream_round(StateDocument(raw), A, NEWEST).placed(mark)
    written = read_again(two_phase.finish_stream_round(document, A)).to_json()
    assert (written["version"], written["streams"][0]["x"]) == (3, {"deep": None})
    assert written["streams"][0]["state"]["theirs"] == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("_data", "yesterday"), ("_data", {"_data": FROM}), ("next_data", "82"), ("next_data", 5)],
)
def test_a_token_that_cannot_be_read_is_an_error_and_stays_as_it_is(name: str, value: object) -> None:
    document = StateDocument(file({A: {**OPEN, name: value}, B: STANDING}))
    with pytest.raises(StateError, match=f"`{name}` in the state file is not a log position"):
        recovery.recover_stream_round(document, A, committed())
    assert any(f"{A}: {name} cannot be read" in problem for problem in problems(document))
    assert tokens(document)[A][name] == value


def test_a_token_that_somebody_changed_is_not_taken_for_ours() -> None:
    raw = StateDocument(file({A: STANDING})).to_json()
    raw["streams"][0]["state"]["_data"] = mark(NEWEST).text
    assert any("somebody else changed it" in problem for problem in problems(StateDocument(raw)))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"next_data": TO}, "next_data is set, but there is no _data"),
        ({"_data": mark(NEWEST).text, "next_data": TO}, "is before _data"),
    ],
)
def test_a_round_that_does_not_follow_is_a_contradiction(state: dict[str, Any], message: str) -> None:
    document = StateDocument(file({A: state}))
    assert any(message in problem for problem in problems(document))
    with pytest.raises(StateError, match="`next_data` does not follow `_data`"):
        recovery.recover_stream_round(document, A, committed())
