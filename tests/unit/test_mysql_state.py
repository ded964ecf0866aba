"""MySQL's state: the contract's scenarios, file for file, and what recovery decides in each."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import recovery, state_json, two_phase
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.state_check import problems
from penstock.ledger.threads import cdc_thread_id

A, B, C = (StreamId("shop", name) for name in ("table_1", "table_2", "table_3"))
FROM, TO = "mysql-bin.000070:772591", "mysql-bin.000070:800000"
SERVER_ID = 1234567890
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def position(text: str) -> Lsn:
    return Lsn(BinlogPlace.parse(text).number)


def place_of(number: Lsn) -> Place:
    """What the log would say: one server, counting on."""
    return Place(str(BinlogPlace.of_number("mysql-bin", int(number))), f"{UUID}:1-{number & 0xFFFFFFFF}")


def file(at: str = FROM, streams: tuple[StreamId, ...] = (A, B), **temporary: Any) -> dict[str, Any]:
    """A file as the contract has it, of tables that we loaded."""
    name, _, pos = at.rpartition(":")
    return {
        "type": "GLOBAL",
        "global": {
            "state": {"server_id": SERVER_ID, "state": {"name": name, "pos": int(pos)}, **temporary},
            "streams": [str(stream) for stream in streams],
        },
        "streams": [
            {
                "stream": stream.name,
                "namespace": stream.namespace,
                "sync_mode": "cdc",
                "state": {"chunks": [], "penstock": {"generation": "g", "committed_to": str(position(at))}},
            }
            for stream in streams
        ],
    }


def shared(document: StateDocument) -> dict[str, Any]:
    """The contract's part of the global state, as it is written."""
    fields: dict[str, Any] = document.to_json()["global"]["state"]
    return {name: fields[name] for name in fields if name not in ("penstock", "gtid_set", "server_uuid")}


def read_again(document: StateDocument) -> StateDocument:
    return StateDocument(state_json.decode(state_json.encode(document.to_json())))


def expected(at: str, **temporary: Any) -> dict[str, Any]:
    name, _, pos = at.rpartition(":")
    return {"server_id": SERVER_ID, "state": {"name": name, "pos": int(pos)}, **temporary}


def committed(*streams: StreamId) -> recovery.IsThreadCommitted:
    ids = {cdc_thread_id(stream, "g", position(FROM)) for stream in streams}
    return lambda stream, thread_id: thread_id in ids


BOTH = [str(A), str(B)]


def test_scenario_1_before_the_commit_the_temporary_fields_are_set() -> None:
    document = two_phase.prepare_round(StateDocument(file()), position(TO), [B, A]).placed(place_of)
    assert shared(document) == expected(FROM, next_cdc_pos=TO, processing=BOTH)


def test_scenario_2_after_the_commit_they_are_moved_and_gone() -> None:
    document = two_phase.prepare_round(StateDocument(file()), position(TO), [A, B]).placed(place_of)
    for stream in (A, B):
        document = read_again(two_phase.stream_committed(document, stream, position(TO)))
    assert shared(document) == expected(FROM, next_cdc_pos=TO)
    assert shared(two_phase.finish_round(document)) == expected(TO)
    assert shared(read_again(two_phase.finish_round(document))) == expected(TO)


def test_scenario_3_a_partial_commit_leaves_the_uncommitted() -> None:
    document = two_phase.prepare_round(StateDocument(file()), position(TO), [A, B]).placed(place_of)
    document = two_phase.stream_committed(document, A, position(TO))
    assert shared(document) == expected(FROM, next_cdc_pos=TO, processing=[str(B)])


OPEN_B = expected(FROM, next_cdc_pos=TO, processing=[str(B)])


@pytest.mark.parametrize(
    ("processing", "held", "configured", "left", "dropped", "after"),
    [
        pytest.param([], [], [A, B], [], [], expected(TO), id="4: all committed, cleanup pending"),
        pytest.param(
            [A, B], [A], [A, B], [B], [], OPEN_B, id="5: one committed and not removed yet, one not"
        ),
        pytest.param([B], [], [A, B], [B], [], OPEN_B, id="3: one removed, one not committed"),
        pytest.param(
            [A, B],
            [],
            [A, B],
            [A, B],
            [],
            expected(FROM, next_cdc_pos=TO, processing=BOTH),
            id="none committed",
        ),
        pytest.param([A, B], [A, B], [A, B], [], [], expected(TO), id="all committed, none removed"),
        pytest.param([A], [], [B], [], [A], expected(TO), id="6: no longer configured"),
        pytest.param([A, B], [], [B], [B], [A], OPEN_B, id="6: beside one that is not committed"),
        pytest.param([A, B], [B], [B], [], [A], expected(TO), id="6: beside one that is"),
    ],
)
def test_recovery(
    *,
    processing: list[StreamId],
    held: list[StreamId],
    configured: list[StreamId],
    left: list[StreamId],
    dropped: list[StreamId],
    after: dict[str, Any],
) -> None:
    temporary: dict[str, Any] = {"next_cdc_pos": TO}
    if processing:
        temporary["processing"] = [str(stream) for stream in processing]
    found = recovery.recover_round(StateDocument(file(**temporary)), set(configured), committed(*held))
    kind = "bounded" if left else "finish"
    assert (found.kind, found.streams, found.dropped) == (kind, tuple(left), tuple(dropped))
    assert (found.start, found.to) == (position(FROM), position(TO))
    assert shared(found.document) == after
    again = recovery.recover_round(read_again(found.document), set(configured), committed(*held))
    assert again.kind == ("bounded" if left else "none")
    assert shared(again.document) == after


def test_without_temporary_fields_nothing_is_recovered() -> None:
    assert recovery.recover_round(StateDocument(file()), {A, B}, committed(A)).kind == "none"


def test_every_mixture_of_streams_is_decided_stream_by_stream() -> None:
    """Each of three streams is not in the round, not committed, committed, or no longer configured."""
    for fates in product(("out", "open", "held", "gone"), repeat=3):
        fate = dict(zip((A, B, C), fates, strict=True))
        processing = [str(stream) for stream in fate if fate[stream] != "out"]
        temporary: dict[str, Any] = {"next_cdc_pos": TO, **({"processing": processing} if processing else {})}
        found = recovery.recover_round(
            StateDocument(file(streams=(A, B, C), **temporary)),
            {stream for stream in fate if fate[stream] != "gone"},
            committed(*(stream for stream in fate if fate[stream] == "held")),
        )
        left = tuple(stream for stream in fate if fate[stream] == "open")
        assert found.streams == left
        assert found.dropped == tuple(stream for stream in fate if fate[stream] == "gone")
        written = read_again(found.document)
        if left:
            assert found.kind == "bounded"
            assert shared(written) == expected(FROM, next_cdc_pos=TO, processing=[str(s) for s in left])
        else:
            assert found.kind == "finish"
            assert shared(written) == expected(TO)
        for stream, what in fate.items():
            state = written.stream(stream)
            if what == "gone":
                assert state is None
            else:
                assert state is not None
                assert state.committed_to == position(TO if what == "held" else FROM)


# The format


def test_a_position_is_written_in_words_and_its_number_beside_them() -> None:
    document = two_phase.prepare_round(StateDocument(file()), position(TO), [A]).placed(place_of)
    document = two_phase.bound_to_server(document, server_id=77, server_uuid=UUID)
    assert document.to_json()["global"]["state"] == {
        "server_id": 77,
        "state": {"name": "mysql-bin.000070", "pos": 772591},
        "next_cdc_pos": TO,
        "processing": [str(A)],
        "server_uuid": UUID,
        "penstock": {
            "places": {
                "state": {"position": "46/BC9EF", "at": FROM},
                "next_cdc_pos": {"position": "46/C3500", "at": TO, "gtid_set": f"{UUID}:1-800000"},
            }
        },
    }
    done = two_phase.finish_round(two_phase.stream_committed(document, A, position(TO)))
    assert done.to_json()["global"]["state"] == {
        "server_id": 77,
        "state": {"name": "mysql-bin.000070", "pos": 800000},
        "server_uuid": UUID,
        "gtid_set": f"{UUID}:1-800000",
        "penstock": {"places": {"state": {"position": "46/C3500", "at": TO}}},
    }
    assert read_again(done).place(position(TO)) == Place(TO, f"{UUID}:1-800000")


@pytest.mark.parametrize(
    "section",
    [
        {"state": {"server_id": 7, "state": {"position": {"Name": "bin.000003", "Pos": 157}, "x": 1}}},
        {"server_id": 7, "state": {"position": {"Name": "bin.000003", "Pos": 157}, "x": 1}},
    ],
)
def test_older_files_of_olake_are_read_and_written_in_the_form_of_today(section: dict[str, Any]) -> None:
    raw = {"type": "GLOBAL", "global": {**section, "streams": ["shop.table_1"]}, "streams": []}
    document = StateDocument(raw)
    assert (document.source, document.lsn) == ("mysql", position("bin.000003:157"))
    written = shared(document)
    assert written == {"server_id": 7, "state": {"x": 1, "name": "bin.000003", "pos": 157}}


def test_a_file_before_its_first_round_has_no_position() -> None:
    raw = {
        "global": {"state": {"server_id": 7, "state": {"position": {"Name": "", "Pos": 0}}}},
        "streams": [],
    }
    document = StateDocument(raw)
    assert (document.source, document.lsn) == ("mysql", None)
    assert shared(document) == raw["global"]["state"]  # type: ignore[index]


def test_foreign_fields_survive_every_move() -> None:
    raw = file(comment="kept")
    raw["version"] = 4
    raw["global"]["note"] = {"deep": [None]}
    raw["global"]["state"]["state"]["crc"] = True
    raw["streams"][0]["state"]["y"] = ""
    document = two_phase.prepare_round(StateDocument(raw), position(TO), [A]).placed(place_of)
    document = two_phase.finish_round(two_phase.stream_committed(document, A, position(TO)))
    written = read_again(document).to_json()
    assert (written["version"], written["global"]["note"]) == (4, {"deep": [None]})
    assert written["global"]["state"]["comment"] == "kept"
    assert written["global"]["state"]["state"] == {"name": "mysql-bin.000070", "pos": 800000, "crc": True}
    assert written["streams"][0]["state"]["y"] == ""


@pytest.mark.parametrize("empty", [None, "", []])
def test_empty_temporary_fields_are_omitted(empty: object) -> None:
    document = StateDocument(file(next_cdc_pos=empty, processing=empty)).draft().done()
    assert (document.next_cdc_pos, document.processing) == (None, ())
    assert shared(document) == expected(FROM)


def test_a_stream_that_is_not_level_has_words_of_its_own() -> None:
    document = two_phase.leave_global(StateDocument(file()), A)
    document = two_phase.prepare_stream_round(document, A, position(TO)).placed(place_of)
    state = document.to_json()["streams"][0]["state"]
    assert (state["cdc_from"], state["next_cdc_pos"]) == (FROM, TO)
    assert state["penstock"]["places"] == {
        "cdc_from": {"position": "46/BC9EF", "at": FROM},
        "next_cdc_pos": {"position": "46/C3500", "at": TO, "gtid_set": f"{UUID}:1-800000"},
    }
    found = recovery.recover_stream_round(read_again(document), A, committed())
    assert (found.kind, found.streams) == ("bounded", (A,))
    finished = recovery.recover_stream_round(read_again(document), A, committed(A))
    state = read_again(finished.document).to_json()["streams"][0]["state"]
    assert (finished.kind, state["cdc_from"]) == ("finish", TO)
    assert "next_cdc_pos" not in state


def test_a_level_stream_joins_and_takes_no_words_along() -> None:
    document = two_phase.leave_global(StateDocument(file()), A)
    document = read_again(two_phase.join_global(read_again(document), A))
    assert set(document.global_streams) == {A, B}
    written = document.to_json()["streams"][0]["state"]
    assert written == {"chunks": [], "penstock": {"generation": "g", "committed_to": "46/BC9EF"}}


def test_places_of_two_servers_may_have_the_same_words() -> None:
    """After a failover the next place may be called as the last one was; their numbers differ."""
    target = Lsn(position(FROM) + 1)
    document = two_phase.prepare_round(StateDocument(file()), target, [A])
    document = read_again(document.placed(lambda number: Place(FROM, f"{UUID}:1-9")))
    assert (document.lsn, document.next_cdc_pos) == (position(FROM), target)
    assert shared(document)["next_cdc_pos"] == FROM
    document = two_phase.finish_round(two_phase.stream_committed(document, A, target))
    assert read_again(document).lsn == target
    assert document.to_json()["global"]["state"]["gtid_set"] == f"{UUID}:1-9"


def test_a_load_begins_with_chunks_and_no_words() -> None:
    document = StateDocument.new("p", "mysql")
    document = two_phase.plan_load(
        document, A, sync_mode="cdc", load_id="l", generation="g", chunks=[Chunk(None, None)]
    )
    assert read_again(document) == document
    assert document.to_json()["streams"][0]["state"]["chunks"] == [{"min": None, "max": None}]
    done = two_phase.join_global(two_phase.load_done(document, A, position(TO)), A).placed(place_of)
    written = read_again(two_phase.bound_to_server(done, server_id=SERVER_ID, server_uuid=""))
    assert shared(written) == {"state": {"name": "mysql-bin.000070", "pos": 800000}, "server_id": SERVER_ID}


def test_a_position_without_words_cannot_be_written() -> None:
    document = two_phase.prepare_round(StateDocument(file()), position(TO), [A])
    with pytest.raises(ValueError, match="are not known"):
        document.to_json()


# What cannot be read


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda state: state["state"].update(pos="772591"), "state"),
        (lambda state: state["state"].update(pos=-1), "state"),
        (lambda state: state["state"].update(pos=True), "state"),
        (lambda state: state["state"].update(name=None), "state"),
        (lambda state: state.update(state=[1]), "state"),
        (lambda state: state.update(next_cdc_pos="800000"), "next_cdc_pos"),
        (lambda state: state.update(next_cdc_pos=5), "next_cdc_pos"),
    ],
)
def test_words_that_cannot_be_read_are_an_error_and_stay_as_they_are(change: Any, named: str) -> None:
    raw = file(next_cdc_pos=TO, processing=BOTH)
    change(raw["global"]["state"])
    document = StateDocument(raw)
    with pytest.raises(StateError, match=f"`{named}` in the state file is not a log position"):
        recovery.recover_round(document, {A, B}, committed())
    assert any(f"global.state.{named} cannot be read" in problem for problem in problems(document))
    assert shared(document)[named] == raw["global"]["state"][named]


@pytest.mark.parametrize("name", ["state", "next_cdc_pos"])
def test_words_that_somebody_changed_are_not_taken_for_ours(name: str) -> None:
    document = two_phase.prepare_round(StateDocument(file()), position(TO), [A]).placed(place_of)
    raw = document.to_json()
    assert problems(StateDocument(raw)) == []
    raw["global"]["state"][name] = (
        {"name": "mysql-bin.000071", "pos": 4} if name == "state" else "mysql-bin.000071:4"
    )
    [problem] = [each for each in problems(StateDocument(raw)) if "somebody else changed it" in each]
    assert f"global.state.{name}" in problem
    with pytest.raises(StateError):
        recovery.recover_round(StateDocument(raw), {A, B}, committed())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update(next_cdc_pos="mysql-bin.000069:9"), "next_cdc_pos 45/9 is before state"),
        (lambda state: state.update(state={}), "next_cdc_pos is set, but there is no state"),
        (lambda state: state.pop("next_cdc_pos"), "there is no next_cdc_pos"),
    ],
)
def test_state_check_speaks_of_the_fields_of_the_file(change: Any, message: str) -> None:
    raw = file(next_cdc_pos=TO, processing=BOTH)
    change(raw["global"]["state"])
    assert any(message in problem for problem in problems(StateDocument(raw)))
    with pytest.raises(StateError, match="contradicts itself"):
        recovery.recover_round(StateDocument(raw), {A, B}, committed())
