"""What holds the slot, and what a start would do: said in words, from values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.console import state_screen
from penstock.console.holding import what_holds
from penstock.console.rates import Rates
from penstock.console.screens import Screens
from penstock.console.view import Found, view_of
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.parquet_layout import TableLayout
from penstock.destinations.records import Marker, TableRecord
from penstock.ledger import orders, rewinding, two_phase
from penstock.ledger.orders import Order
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
from tests.idle_pipeline import idle_pipeline

ORDERS = StreamId("public", "orders")


def status(role: str = "leading", reason: str = "", *, healthy: bool = True) -> dict[str, Any]:
    capture = {"name": "capture", "state": role, "reason": reason}
    return {"role": role, "processes": [capture], "source": {"slot_healthy": healthy}}


def lane(name: str, lag_bytes: int | None = 0, **more: Any) -> dict[str, Any]:
    fields = {"lane": name, "known": True, "lag_bytes": lag_bytes, "lag_seconds": 0.0, "configured": True}
    fields |= {"paused": False, "paused_since": None, "paused_reason": "", "state": "running", "reason": ""}
    return fields | more


def stream(name: str, state: str = "following", **more: Any) -> dict[str, Any]:
    return {"stream": name, "state": state, "paused": None} | more


def said(*arguments: Any) -> tuple[str, str]:
    found = what_holds(*arguments)
    return found["level"], "".join(str(next(iter(piece.values()))) for piece in found["pieces"])


def test_what_holds_the_slot_is_named() -> None:
    paused = stream(
        "public.orders", "paused", paused={"since": "2026-11-16T12:04:00Z", "reason": "a migration"}
    )
    cases = [
        ((None, [], []), "bad", "No instance runs"),
        (
            (status("reconnecting", "connection refused"), [], []),
            "bad",
            "Capture does not read (connection refused)",
        ),
        ((status("standby"), [], []), "good", "stands by"),
        ((status(healthy=False), [], []), "bad", "loaded again"),
        ((status("down", "the slot is gone", healthy=False), [], []), "bad", "loaded again"),
        ((status(), [], [lane("lake"), lane("kafka", 10)]), "good", "Nothing holds the slot back"),
        (
            (status(), [paused], [lane("lake", 900), lane("kafka", 10)]),
            "bad",
            "The lake lane waits for public.orders, paused since 2026-11-16T12:04:00Z (a migration).",
        ),
        ((status(), [stream("a.b", "loading")], [lane("lake", 9)]), "busy", "waits for the load of a.b"),
        (
            (status(), [], [lane("lake"), lane("kafka", 1 << 30)]),
            "busy",
            "The kafka lane is the furthest behind",
        ),
        (
            (
                status(),
                [],
                [lane("lake"), lane("kafka", 5, paused=True, paused_since="t", paused_reason="why")],
            ),
            "bad",
            "The kafka lane is paused since t (why).",
        ),
        (
            (status(), [], [lane("lake", 1 << 30), lane("kafka", 5, paused=True)]),
            "bad",
            "The kafka lane is paused.",
        ),
        (
            (status(), [], [lane("lake", 1 << 30), lane("kafka", 0, state="parked", reason="no topic")]),
            "bad",
            "The kafka lane is parked (no topic).",
        ),
        (
            (status(), [], [lane("lake"), lane("kafka", None, known=False, state="parked")]),
            "bad",
            "The kafka lane is parked.",
        ),
        (
            (status(), [], [lane("lake"), lane("kafka", 0, state="starting")]),
            "busy",
            "kafka lane is starting",
        ),
        (
            (status(), [paused], [lane("lake"), lane("kafka", 10)]),
            "bad",
            "The lake lane waits for public.orders, paused since",
        ),
        (
            (
                status(),
                [stream("a.b", "paused", paused={"since": "", "reason": ""}), paused],
                [lane("lake")],
            ),
            "bad",
            "public.orders, paused since 2026-11-16T12:04:00Z (a migration), and for 1 more.",
        ),
        (
            (status(), [stream("a.b", "paused", paused={"since": None, "reason": ""})], [lane("lake")]),
            "bad",
            "The lake lane waits for a.b, paused.",
        ),
        (
            (status(), [], [lane("lake"), lane("kafka", 1 << 30, gaps=2)]),
            "bad",
            "Changes are missing in the kafka lane: 2 streams stand still",
        ),
        (
            (status(), [stream("a.b", dead_letters=1)], [lane("lake"), lane("kafka", dead_letters=1000)]),
            "busy",
            "but 1,001 dead letters wait",
        ),
        (
            (status(), [], [lane("lake"), lane("old", None, known=False, configured=False)]),
            "bad",
            "not in the pipeline file",
        ),
        ((status(), [], [lane("lake"), lane("old", 5, configured=False)]), "bad", "not in the pipeline file"),
        ((status(), [], [lane("lake", known=False)]), "busy", "has not said how far it is"),
        (
            (status(), [], [lane("lake"), lane("kafka", 5, state="reconnecting", reason="no broker\nmore")]),
            "bad",
            "The kafka lane is reconnecting (no broker).",
        ),
        (
            (
                status(),
                [paused],
                [
                    lane("lake"),
                    lane("kafka", None, known=False, state="starting"),
                    lane("shapes", state="waiting"),
                ],
            ),
            "bad",
            "The lake lane waits for public.orders, paused since",
        ),
        (
            (
                status(),
                [],
                [lane("lake", 1 << 30), lane("kafka", 0, reason="since 12:04 the target takes nothing")],
            ),
            "bad",
            "The kafka lane waits: since 12:04 the target takes nothing.",
        ),
        (
            (
                status(),
                [],
                [lane("lake"), lane("kafka", gaps=1, reason="since 12:04 nothing; a.b lacks changes")],
            ),
            "bad",
            "1 stream stands still until loaded again (since 12:04 nothing; a.b lacks changes).",
        ),
    ]
    for arguments, level, text in cases:
        found = said(*arguments)
        assert found[0] == level, found
        assert text in found[1]


def config(directory: Path, **sections: Any) -> Config:
    return Config.load(idle_pipeline(directory, ["public.orders", "public.items"], **sections))


def document(*, open_round: bool = False) -> StateDocument:
    names = ("orders", "items")
    own = {"generation": "g", "load_id": "l", "committed_to": "0/10"}
    entries = [
        {"stream": name, "namespace": "public", "sync_mode": "cdc", "state": {"chunks": [], "penstock": own}}
        for name in names
    ]
    found = StateDocument(
        {
            "type": "GLOBAL",
            "streams": entries,
            "penstock": {"format_version": 1, "state_version": 0},
            "global": {"state": {"lsn": "0/10"}, "streams": [f"public.{name}" for name in names]},
        }
    )
    return two_phase.prepare_round(found, Lsn(0x20), [ORDERS]) if open_round else found


def test_what_a_start_would_do_is_what_recovery_decides(tmp_path: Path) -> None:
    settings = config(tmp_path)
    told = {each["what"]: each["text"] for each in state_screen.restart(document(), settings)}
    assert "2 streams follow the log from 0/10 on" in told["all others"]
    told = {each["what"]: each["text"] for each in state_screen.restart(document(open_round=True), settings)}
    assert "public.orders: exactly the changes after 0/10 up to 0/20" in told["the open round"]
    paused = orders.applied(document(), [Order("pause", ORDERS, "why not", at="then")])
    told = {each["what"]: each["text"] for each in state_screen.restart(paused, settings)}
    assert told["public.orders"] == "Stands still, as it has since then (why not); its changes are kept."
    again = orders.applied(paused, [Order("resync", ORDERS)])
    told = {each["what"]: each["text"] for each in state_screen.restart(again, settings)}
    assert told["public.orders"] == "Is loaded again: it was asked for."
    told = {each["what"]: each["text"] for each in state_screen.restart(StateDocument.new(), settings)}
    assert "Nothing was followed yet" in told["the log"]


TOKEN, NEXT = "82673F82FE000000022B0429296E1404", "82673F82FE000000042B0429296E1505"
AT = ResumeToken(TOKEN).time
MONGO = {"type": "mongodb", "url": "mongodb://nowhere/shop"}


def of_mongodb(**states: dict[str, Any]) -> StateDocument:
    """Streams that each have a position of their own; `states`: what is said of them besides."""
    entries = [
        {
            "stream": name,
            "namespace": "shop",
            "sync_mode": "cdc",
            "state": {"_data": TOKEN, "chunks": [], "penstock": {"generation": "g"}, **fields},
        }
        for name, fields in states.items()
    ]
    own = {"format_version": 1, "state_version": 3, "source": "mongodb"}
    return StateDocument({"type": "STREAM", "streams": entries, "penstock": own})


def start_of(found: StateDocument, directory: Path, **sections: Any) -> dict[str, str]:
    settings = Config.load(idle_pipeline(directory, ["shop.*"], **sections))
    return {each["what"]: each["text"] for each in state_screen.restart(found, settings)}


def test_where_each_stream_has_a_position_of_its_own_a_start_is_told_so(tmp_path: Path) -> None:
    told = start_of(of_mongodb(orders={}, items={"next_data": NEXT}), tmp_path, source=MONGO)
    assert "Capture opens change streams where the change log ends" in told["the log"]
    assert told["shop.items"] == (
        f"Its own round is not in the table, and is given up: the next one begins at {AT} too, and goes as "
        "far as the log does."
    )
    assert told["all streams"] == (
        f"Each stream follows the log from its own position on; the least is {AT}."
    )
    assert "shop.orders" not in told, "it waits for no others to be level with"
    facts = {each["where"]: each for each in state_screen._facts(of_mongodb(orders={}, items={}))}
    assert facts["streams[].state._data"]["value"] == f"2, the least {AT}"
    assert "join the others" not in facts["streams[].state._data"]["meaning"]


@pytest.mark.parametrize("source", [MONGO, {"type": "mysql", "url": "mysql://nowhere/shop"}])
def test_slots_are_spoken_of_where_there_are_slots(tmp_path: Path, source: dict[str, str]) -> None:
    settings = Config.load(idle_pipeline(tmp_path, ["shop.*"], source=source))
    assert "Nothing was followed yet" in start_of(StateDocument.new(), tmp_path, source=source)["the log"]
    paths: list[tuple[Any, list[Any], list[Any]]] = [(None, [], []), (status(), [], [lane("lake")])]
    paths.append((status(), [], [lane("lake"), lane("old", 5, configured=False)]))
    paths.append((status(), [stream("a.b", dead_letters=1)], [lane("lake")]))
    said_here = [str(state_screen.restart(StateDocument.new(), settings))]
    said_here += [str(what_holds(*each, has_slot=False)) for each in paths]
    assert not [text for text in said_here if "slot" in text]


def test_the_page_says_where_tables_are_also_without_a_shared_position(tmp_path: Path) -> None:
    settings = Config.load(idle_pipeline(tmp_path, ["shop.*"], source=MONGO))
    found = Found("now", None, of_mongodb(orders={}, items={}), {}, {})
    assert view_of(settings, found, Rates())["position"] == str(AT)


def test_changes_that_are_to_be_applied_once_more_are_told_of(tmp_path: Path) -> None:
    settings = config(tmp_path)
    wanted = rewinding.asked(document(), ORDERS, Lsn(8))
    told = {each["what"]: each["text"] for each in state_screen.restart(wanted, settings)}
    assert told["public.orders"] == (
        "Behind the changes that wait, the log after 0/8 is applied to its table once more, in one commit."
    )
    assert "streams[].state.penstock.rewind" in {each["where"] for each in state_screen._facts(wanted)}
    paused = orders.applied(wanted, [Order("pause", ORDERS, "why", at="then")])
    told = {each["what"]: each["text"] for each in state_screen.restart(paused, settings)}
    assert "When it is resumed, the log after 0/8 is applied" in told["public.orders"]
    begun = rewinding.prepared(wanted, ORDERS, "again")
    marker = Marker("again", Lsn(1), Lsn(8), Lsn(0x10), ("thread",))
    record = TableRecord(1, "changes", "then", Lsn(1), "upsert", TableSchema(ORDERS, ()), "v1", (), marker)
    layout = TableLayout(settings.destination.directory, ORDERS)
    layout.commits.mkdir(parents=True)
    assert layout.create_record(record)
    told = {each["what"]: each["text"] for each in state_screen.restart(begun, settings)}
    assert told["public.orders"].endswith("applied to its table once more: only the state is written.")


def test_a_comparison_that_was_cut_short_is_not_told_as_chunks_that_are_loaded(tmp_path: Path) -> None:
    raw = document().to_json()
    state = raw["streams"][0]["state"]
    state["chunks"] = [{"min": None, "max": None, "status": "preparing"}]
    state["penstock"]["load_by_difference"] = True
    found = StateDocument(raw)
    told = {each["what"]: each["text"] for each in state_screen.restart(found, config(tmp_path))}
    assert told["public.orders"] == (
        "Is compared with its source again, and written where it differs: that was cut short."
    )
    facts = {each["where"] for each in state_screen._facts(found)}
    assert "streams[].state.penstock.load_by_difference" in facts
    assert "streams[].state.chunks" not in facts


def test_values_of_rows_in_the_state_are_shown_to_who_asks_for_values_alone(tmp_path: Path) -> None:
    """Bounds of chunks are keys, cursors are values, and a resume token has a document's key in it."""
    settings = config(tmp_path)
    store = StateStore(settings.state)
    first = document().to_json()
    bounds = {"min": "secret-key-1", "max": None, "status": "preparing", "leaf": "public.orders_7"}
    first["streams"][0]["state"]["chunks"] = [bounds]
    state = first["streams"][1]["state"]
    state |= {"updated_at": "secret-time", "olake_next_cursor_updated_at": 4_711_471_147}
    state |= {"_data": "82SECRETTOKEN", "unknown": {"nested": ["secret-other"]}}
    second = json.loads(json.dumps(first))
    second["streams"][0]["state"]["chunks"] = [{**bounds, "min": "secret-key-2"}]
    second["streams"][1]["state"]["updated_at"] = "secret-later"
    for number, each in enumerate((first, second)):
        store.save(StateDocument(each).numbered(number))
    secrets = ("secret", "SECRET", "4711471147")
    for shown in (state_screen.explained(settings), state_screen.difference(settings.state, 1, 2)):
        text = json.dumps(shown)
        assert not [each for each in secrets if each in text], text
    hidden = state_screen.explained(settings)["document"]["streams"]
    assert hidden[0]["state"]["chunks"] == [
        {"min": "(hidden)", "max": None, "status": "preparing", "leaf": "public.orders_7"}
    ]
    assert hidden[0]["state"]["penstock"]["committed_to"] == "0/10", "positions are no values"
    changed = {each["path"]: each for each in state_screen.difference(settings.state, 1, 2)["differences"]}
    cursor = changed["streams[public.items].state.updated_at"]
    assert (cursor["before"], cursor["after"]) == ("(hidden)", "(hidden)"), "that it changed is seen"
    assert "streams[public.orders].state.chunks" in changed
    asked = json.dumps(state_screen.explained(settings, values=True), default=str)
    assert "secret-key-2" in asked
    assert "secret-later" in json.dumps(state_screen.difference(settings.state, 1, 2, values=True))


def test_what_shapes_compare_with_is_shown_to_who_asks_for_values_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = r"""E'a ''secret'' \\'"""
    where = f"""("it's" = ({secret}::pg_catalog.text COLLATE "C")) OR ("n" = ('4711'::pg_catalog.int4))"""
    told = [{"handle": "1", "where": where}, {"handle": "2", "where": None}]
    monkeypatch.setattr("penstock.console.screens.shapes.shapes", lambda _state: told)
    settings = config(tmp_path, lanes={"shapes": {"port": 0, "insecure": True}})
    screens = Screens(settings, tmp_path / "penstock.yaml")
    hidden, nothing = screens.looks()["shapes"]({})["shapes"]
    shown = """("it's" = ('…'::pg_catalog.text COLLATE "C")) OR ("n" = ('…'::pg_catalog.int4))"""
    assert hidden["where"] == shown
    assert nothing["where"] is None
    assert screens.values()["shapes"]({})["shapes"][0]["where"] == where


def test_versions_are_compared_by_path_and_stream(tmp_path: Path) -> None:
    settings = config(tmp_path)
    store = StateStore(settings.state)
    first = store.save(document())
    second = store.save(orders.applied(first, [Order("pause", ORDERS, "why", at="then")]))
    assert (first.state_version, second.state_version) == (1, 2)
    found = state_screen.difference(settings.state, 1, 2)
    paths = {each["path"]: (each["before"], each["after"]) for each in found["differences"]}
    assert paths["penstock.state_version"] == ("1", "2")
    assert any(path.startswith("streams[public.orders].state.penstock.paused") for path in paths)
    assert not any("public.items]" in path for path in paths)
    explained = state_screen.explained(settings)
    assert explained["problems"] == []
    assert [each["version"] for each in explained["versions"]] == [2, 1]
    assert any(fact["where"] == "streams[].state.cdc_from" for fact in explained["facts"])
