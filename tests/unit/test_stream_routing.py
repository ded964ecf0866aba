"""Where events go: topics by template, outbox tables, emitted messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.postgres.emitted import TABLE, EmittedMessages
from penstock.capture.transactions import ChangeRows
from penstock.core.errors import ConfigError
from penstock.core.position import Lsn
from penstock.core.stream import MESSAGES, StreamId
from penstock.log.columns import log_schema
from penstock.sources.postgres.pgoutput import parse_emitted
from penstock.streams.events import CREATE, MESSAGE, Events
from penstock.streams.load_state import LoadState, Place, least_point
from penstock.streams.messages import EmittedRoute
from penstock.streams.routing import NO_TOPIC, Outbox, Router, Routes, bytes_of_hex
from penstock.streams.topics import legal_topic
from tests.logged_rows import changes_of, schema_of
from tests.stream_changes import COMMIT_TEXT, COMMIT_US

OUTBOX = schema_of(
    "public.outbox",
    {"id": "int4", "kind": "text", "about": "text", "payload": "text", "raw": "bytea"},
    ["id"],
)


def keys(changes: ChangeRows) -> pa.BinaryArray:
    return pa.array([f"[{each}]".encode() for each in changes.new("id").to_pylist()], pa.binary())


def outbox_router(**changed: Any) -> Router:
    outbox = Outbox(StreamId("public", "outbox"), **{"topic": "out.{kind}", "payload": "payload", **changed})
    return Router(Routes("shop", outbox=(outbox,)))


def test_topics_follow_the_template_and_have_legal_names() -> None:
    router = Router(Routes("shop", "{prefix}.{schema}.{table}"))
    assert router.route(StreamId("public", "orders")) == "shop.public.orders"
    assert router.route(StreamId("public", "weird name")) == "shop.public.weird_name"
    assert router.route(StreamId("public", "weird name")) == "shop.public.weird_name"
    with pytest.raises(ConfigError, match="as those of another stream do"):
        router.route(StreamId("public", "weird/name"))
    assert Router(Routes("shop", "all")).route(StreamId("public", "a")) == "all"


@given(st.text())
def test_every_name_becomes_one_that_a_broker_takes(name: str) -> None:
    topic = legal_topic(name)
    assert len(topic) <= 249
    assert topic not in (".", "..")
    assert all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in topic)


def test_inserts_into_an_outbox_table_are_messages_and_nothing_else_is() -> None:
    rows: list[dict[str, Any]] = [
        {"_op": "i", "id": "1", "kind": "paid", "about": "a", "payload": '{"n": 1}'},
        {"_op": "u", "id": "1", "kind": "paid", "about": "a", "payload": "changed"},
        {"_op": "d", "_old": {"id": "1"}, "_old_kind": "k"},
        {"_op": "r", "id": "2", "kind": "paid", "about": "a", "payload": "was there"},
        {"_op": "i", "id": "3", "kind": "sent out", "about": "b", "payload": "x"},
        {"_op": "i", "id": "4", "kind": "paid", "about": None, "payload": None},
        {"_op": "i", "id": "5", "kind": None, "about": "c", "payload": "lost?"},
    ]
    router = outbox_router(key="about", headers=(("type", "kind"),))
    assert router.sends_messages(OUTBOX.stream)
    made = {events.route: events for events in router.messages(changes_of(OUTBOX, rows), None, keys)}
    assert sorted(made) == ["out._kind_", "out.paid", "out.sent_out"]
    paid = made["out.paid"]
    assert paid.key.to_pylist() == [b"a", None]
    assert paid.value.to_pylist() == [b'{"n": 1}', None]
    assert paid.headers["type"].to_pylist() == ["paid", "paid"]
    assert paid.tx.tolist() == [100, 105]
    assert set(paid.kind.tolist()) == {MESSAGE}
    assert not paid.refused
    [(code, _)] = made["out._kind_"].refused.values()
    assert code == NO_TOPIC


def test_without_a_key_column_messages_have_the_tables_own_key() -> None:
    rows = [
        {"_op": "i", "id": "1", "kind": "a", "payload": "x"},
        {"_op": "i", "id": "2", "kind": "a", "payload": "y"},
    ]
    changes = changes_of(OUTBOX, rows)
    [events] = outbox_router().messages(changes, None, keys)
    assert events.key.to_pylist() == [b"[1]", b"[2]"]
    skipped = np.array([0, CREATE], np.uint8)
    [events] = outbox_router().messages(changes, skipped, keys)
    assert events.value.to_pylist() == [b"y"]


def test_a_payload_of_bytes_is_sent_as_bytes() -> None:
    rows = [
        {"_op": "i", "id": "1", "kind": "a", "raw": "\\x00ff"},
        {"_op": "i", "id": "2", "kind": "a", "raw": "\\x"},
    ]
    [events] = outbox_router(payload="raw").messages(changes_of(OUTBOX, rows), None, keys)
    assert events.value.to_pylist() == [b"\x00\xff", b""]


def test_a_column_that_an_outbox_table_does_not_have_is_named() -> None:
    changes = changes_of(OUTBOX, [{"_op": "i", "id": "1"}])
    with pytest.raises(ConfigError, match="no column nowhere"):
        outbox_router(topic="{nowhere}").messages(changes, None, keys)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=8))), st.integers(0, 3))
def test_hexadecimal_digits_become_the_bytes_they_stand_for(values: list[bytes | None], start: int) -> None:
    texts = pa.array([None if value is None else f"\\x{value.hex()}" for value in values], pa.string())
    assert bytes_of_hex(texts.slice(start)).to_pylist() == values[start:]


def message(prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    lsn, size = (500).to_bytes(8), len(content).to_bytes(4)
    return b"M" + bytes([transactional]) + lsn + prefix.encode() + b"\0" + size + content


def test_emitted_messages_are_counted_in_their_transaction_and_sent_by_prefix() -> None:
    kept = EmittedMessages(["app", "job.*"])
    assert [kept.wants(each) for each in ("app", "apple", "job.1", "penstock")] == [True, False, True, False]
    assert not EmittedMessages(["*"]).wants("penstock"), "our own are nobody's"
    for tx, prefix in ((10, "app"), (10, "job.x"), (10, "app"), (20, "app")):
        kept.add(parse_emitted(message(prefix, b"\xff")), tx, 3, 7, COMMIT_US)
    rows = kept.take(log_schema(TABLE.schema, STREAM))
    assert rows is not None
    assert kept.take(rows.schema) is None
    changes = ChangeRows(MESSAGES, MESSAGES, TABLE.schema.id, rows)
    router = Router(Routes("shop", emitted=EmittedRoute(("app",), "said.{prefix}")))
    [events] = router.messages(changes, None, keys)
    assert events.route == "said.app"
    assert list(zip(events.tx.tolist(), events.op.tolist(), strict=True)) == [(10, 0), (10, 2), (20, 0)]
    told = json.loads(events.value[0].as_py())
    assert (told["source"]["commit_ts"], told["ts_ms"]) == (COMMIT_TEXT, COMMIT_US // 1000)
    assert Router(Routes("shop")).messages(changes, None, keys) == []


STREAM = str(MESSAGES)


def test_headers_go_with_their_events() -> None:
    numbers = np.arange(3)
    texts = pa.array([b"a", b"b", b"c"], pa.binary())
    headers = {"type": pa.array(["x", None, "z"])}
    events = Events(
        MESSAGES, "t", numbers, numbers, numbers.astype(np.uint8), numbers, texts, texts, headers=headers
    )
    assert events.slice(1, 3).headers["type"].to_pylist() == [None, "z"]
    assert events.take(np.array([2, 0])).headers["type"].to_pylist() == ["z", "x"]


LSNS = st.integers(0, 2**63 - 1).map(Lsn)
STATES = st.builds(
    LoadState,
    point=LSNS,
    name=st.text(),
    next=st.one_of(st.none(), st.builds(Place, st.text(), st.one_of(st.none(), st.text()))),
    is_behind=st.booleans(),
    method=st.sampled_from(["ctid", "key"]),
    storage=st.text(),
    rows=st.integers(0),
)


@given(STATES, LSNS)
def test_the_state_of_a_load_says_the_same_when_it_is_read_back(state: LoadState, lane: Lsn) -> None:
    found = LoadState.from_json(state.to_json(lane))
    assert found.is_loading == state.is_loading
    assert found.next == state.next
    if state.is_loading:
        assert (found.point, found.name, found.rows) == (state.point, state.name, state.rows)
    else:
        assert max(found.point, lane) == max(state.point, lane), "what the lane has passed is of no interest"


def test_the_log_is_needed_from_the_oldest_point_of_loads() -> None:
    states = {
        "public.a": LoadState(Lsn(5)),
        "public.b": LoadState(Lsn(30), next=Place("public.b", "7")),
        "public.c": LoadState(Lsn(20), is_behind=True),
    }
    assert least_point({name: state.to_json(Lsn(1)) for name, state in states.items()}) == 20
    assert least_point({"public.a": {}}) is None
