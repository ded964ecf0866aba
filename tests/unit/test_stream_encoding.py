"""Own JSON against a plain encoder written from the contract with `json` and `decimal`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.transactions import ChangeRows
from penstock.core.errors import ConfigError
from penstock.core.stream import StreamId
from penstock.streams.encoding.column_encoder import ColumnEncoder
from penstock.streams.encoding.encoder import EncodingSettings, encoder
from penstock.streams.encoding.json_format import JsonFormat
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import Events
from tests.logged_rows import with_entries_beneath_a_null
from tests.stream_changes import COMMIT_TEXT, Change, Row, changes_of, column

STREAM = StreamId("public", 'odd "table"')
NOW_NS = 1_769_860_800_130_000_000
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
INT8 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, -(2**53), 1 - 2**53])
FLOAT8 = st.floats() | st.sampled_from([-0.0, 1e300, 5e-324, math.nan, math.inf, -math.inf])


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "-0" if value == 0 and math.copysign(1, value) < 0 else repr(value).removesuffix(".0")


#: A strategy of Postgres' texts for each class of types.
TEXTS: dict[str, st.SearchStrategy[str]] = {
    "int2": st.integers(-(2**15), 2**15 - 1).map(str),
    "int4": st.integers(-(2**31), 2**31 - 1).map(str),
    "int8": INT8.map(str),
    "float8": FLOAT8.map(_float_text),
    "float4": st.floats(width=32).map(_float_text),
    "numeric": st.decimals().map(lambda value: "NaN" if value.is_nan() else str(value)),
    "bool": st.sampled_from("tf"),
    "text": TEXT,
    "json": st.recursive(st.none() | st.booleans() | st.integers() | TEXT, st.lists).map(
        lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    ),
    "jsonb": st.dictionaries(TEXT, st.integers() | TEXT).map(json.dumps),
    "bytea": st.binary(max_size=9).map(lambda value: "\\x" + value.hex()),
    "timestamptz": st.just("2024-05-17 12:34:56.789+00")
    | st.sampled_from(["infinity", "0044-03-15 00:00:00 BC"]),
    "interval": st.sampled_from(["P1Y2M3DT4H5M6.7S", "PT0S", "P-1D"]),
    "_text": st.sampled_from(['{a,"b c",NULL}', "{}", "{{1,2},{3,4}}"]),
    "mood": st.sampled_from(["sad", "ok"]),  # an enum
}
COLUMNS = [
    column(
        f"c_{name} é", name, oid=20_000 if name == "mood" else 1, element="text" if name == "_text" else ""
    )
    for name in TEXTS
]
NAMES = tuple(each.name for each in COLUMNS)
VALUES = {each.name: TEXTS[each.type_name] for each in COLUMNS}
KEYS = ("c_int8 é", "c_text é")
VIEW = StreamView(STREAM, "topic", NAMES, KEYS)


def rows() -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries(
        {name: values if name in KEYS else st.none() | values for name, values in VALUES.items()}
    )


@st.composite
def changes(draw: st.DrawFn, ops: str = "iudtr") -> Change:
    op = draw(st.sampled_from(ops))
    tx, op_index, xid = draw(st.tuples(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(0, 2**40)))
    if op in "ir":
        return Change(op, draw(rows()), tx=tx, op_index=op_index, xid=xid)
    if op == "t":
        return Change(op, tx=tx, op_index=op_index, xid=xid)
    old = draw(rows())
    if op == "d":
        kind = draw(st.sampled_from("fk"))
        return Change(
            op,
            None,
            old if kind == "f" else _only(old, KEYS),
            old_kind=kind,
            tx=tx,
            op_index=op_index,
            xid=xid,
        )
    new = draw(rows())
    if draw(st.booleans()):
        new |= _only(old, KEYS)
    unchanged = tuple(
        draw(st.sets(st.sampled_from([name for name in NAMES if name not in KEYS]), max_size=3))
    )
    new |= dict.fromkeys(unchanged)
    moved = any(old[name] != new[name] for name in KEYS)
    kind = draw(st.sampled_from("fk" if moved else "fn"))
    told = {"f": old, "k": _only(old, KEYS), "n": None}[kind]
    return Change(op, new, told, unchanged=unchanged, old_kind=kind, tx=tx, op_index=op_index, xid=xid)


def _only(row: Mapping[str, str | None], names: Sequence[str]) -> Row:
    return {name: row[name] for name in names}


# --- the model: an event as (kind, op, key, value)

Told = tuple[str, int, Any, Any]


def said(change: Change, view: StreamView, action: str | None = None) -> Iterator[Told]:
    action = action or {"i": "c"}.get(change.op, change.op)
    old, new = change.old, change.new
    tombstone = view.tombstones and view.key
    if action == "t":
        yield ("t", change.op_index, None, value(change, "t"))
    elif action in "cr":
        yield (action, change.op_index, key(new, view), value(change, action, after=new, view=view))
    elif action == "d" or (view.key and old is not None and key(old, view) != key(new, view)):
        gone = old if old is not None else new
        before = None
        if view.before:
            before = (
                gone
                if change.told == "f"
                else _only(gone or {}, [name for name in view.columns if name in view.key])
            )
        yield ("d", change.op_index, key(gone, view), value(change, "d", before=before, view=view))
        if tombstone:
            yield ("n", change.op_index, key(gone, view), None)
        if action != "d":
            created = value(change, "c", after=new, view=view, op_index=change.op_index + 1)
            yield ("c", change.op_index + 1, key(new, view), created)
    else:
        before = old if view.before else None
        if before is not None and change.told == "k":
            before = _only(before, view.key)
        yield ("u", change.op_index, key(new, view), value(change, "u", before=before, after=new, view=view))


def key(row: Mapping[str, str | None] | None, view: StreamView) -> Any:
    return [cell(name, (row or {})[name]) for name in view.key] if view.key else None


def value(
    change: Change,
    kind: str,
    *,
    before: Mapping[str, str | None] | None = None,
    after: Mapping[str, str | None] | None = None,
    view: StreamView = VIEW,
    op_index: int | None = None,
) -> Any:
    unchanged = [name for name in view.columns if name in change.unchanged] if after is not None else []
    return {
        "op": kind,
        "before": None if before is None else {n: cell(n, before[n]) for n in view.columns if n in before},
        "after": None
        if after is None
        else {name: cell(name, after[name]) for name in view.columns if name not in unchanged},
        **({"unchanged": unchanged} if unchanged else {}),
        "source": {
            "schema": "public",
            "table": STREAM.name,
            "lsn": f"{change.tx >> 32:X}/{change.tx & 0xFFFFFFFF:X}",
            "txid": exact(change.xid),
            "commit_ts": COMMIT_TEXT,
            "tx": exact(change.tx),
            "op_index": exact(change.op_index if op_index is None else op_index),
            "snapshot": kind == "r",
        },
        "ts_ms": ("number", str(NOW_NS // 1_000_000)),
    }


def exact(number: int) -> Any:
    return ("number", str(number)) if abs(number) < 2**53 else str(number)


def cell(name: str, text: str | None) -> Any:
    kind = next(each.type_name for each in COLUMNS if each.name == name)
    if text is None:
        return None
    if kind in ("int2", "int4", "int8"):
        return exact(int(text))
    if kind in ("float4", "float8"):
        return ("number", text) if math.isfinite(float(text)) else text
    if kind == "bool":
        return text == "t"
    return parsed(text) if kind in ("json", "jsonb") else text


def parsed(text: str | bytes) -> Any:
    """JSON with numbers as they are written."""
    return json.loads(
        text, parse_int=lambda digits: ("number", digits), parse_float=lambda digits: ("number", digits)
    )


def heard(events: Events) -> list[Told]:
    texts = zip(events.key.to_pylist(), events.value.to_pylist(), strict=True)
    return [
        (chr(kind), int(op), None if key is None else parsed(key), None if value is None else parsed(value))
        for kind, op, (key, value) in zip(events.kind, events.op, texts, strict=True)
    ]


def encode(view: StreamView, given: Sequence[Change], actions: Any = None, salt: bytes = b"") -> Events:
    own = ColumnEncoder(JsonFormat(), salt, clock_ns=lambda: NOW_NS)
    return own.encode(changes_of(STREAM, COLUMNS, given), view, actions)


@settings(deadline=None, max_examples=60)
@given(st.lists(changes(), max_size=4), st.booleans(), st.booleans())
def test_every_change_is_told_as_the_contract_says(
    given_changes: list[Change], tombstones: bool, before: bool
) -> None:
    view = replace(VIEW, tombstones=tombstones, before=before)
    expected = [event for change in given_changes for event in said(change, view)]
    events = encode(view, given_changes)
    assert heard(events) == expected
    assert events.tx.tolist() == [change.tx for change in given_changes for _ in said(change, view)]
    assert events.xid.tolist() == [change.xid for change in given_changes for _ in said(change, view)]
    assert all(b"\n" not in text for text in events.value.to_pylist() if text is not None)


@settings(deadline=None)
@given(st.lists(changes(), max_size=3), st.sets(st.sampled_from(NAMES), min_size=1))
def test_only_the_columns_of_the_stream_are_told_and_the_key_even_if_it_is_not_one_of_them(
    given_changes: list[Change], chosen: set[str]
) -> None:
    view = replace(VIEW, columns=tuple(name for name in NAMES if name in chosen))
    expected = [event for change in given_changes for event in said(change, view)]
    assert heard(encode(view, given_changes)) == expected


@settings(deadline=None)
@given(changes("u"), st.sampled_from([None, "c", "u", "d"]))
def test_what_the_filter_says_of_an_update_is_told(change: Change, action: str | None) -> None:
    actions = np.array([0 if action is None else ord(action)], np.uint8)
    expected = [] if action is None else list(said(change, VIEW, action))
    assert heard(encode(VIEW, [change], actions)) == expected


ROW: Row = dict.fromkeys(NAMES) | {"c_int8 é": "1", "c_text é": "a"}


def test_a_table_without_a_primary_key_has_null_keys_and_no_tombstones() -> None:
    view = replace(VIEW, key=())
    events = encode(view, [Change("i", ROW), Change("d", None, ROW)])
    assert [chr(kind) for kind in events.kind] == ["c", "d"]
    assert events.key.to_pylist() == [None, None]


def test_equal_rows_without_a_primary_key_have_equal_hashes_for_keys_if_asked() -> None:
    view = replace(VIEW, key=(), row_keys=True)
    other = ROW | {"c_text é": "b"}
    events = encode(view, [Change("i", ROW), Change("i", other), Change("d", None, ROW)])
    first, second, third = events.key.to_pylist()
    assert first == third != second
    assert first.startswith(b"#")
    assert len(first) == 33


def test_a_column_that_the_version_does_not_have_is_null() -> None:
    view = replace(VIEW, columns=("c_int8 é", "added later"))
    (event,) = heard(encode(view, [Change("i", ROW)]))
    assert event[3]["after"] == {"c_int8 é": ("number", "1"), "added later": None}


def test_a_name_beneath_a_null_list_is_told_of_no_row() -> None:
    changes = changes_of(STREAM, COLUMNS, [Change("u", ROW)] * 3)
    lists = with_entries_beneath_a_null(["c_text é", "c_int8 é", "c_int2 é"])
    rows = changes.rows.set_column(changes.rows.schema.names.index("_unchanged"), "_unchanged", lists)
    given_changes = ChangeRows(changes.stream, changes.leaf, changes.schema_id, rows)
    view = replace(VIEW, key=())
    events = ColumnEncoder(JsonFormat(), b"", clock_ns=lambda: NOW_NS).encode(given_changes, view, None)
    told = [event[3].get("unchanged") for event in heard(events) if event[3] is not None]
    assert told == [["c_text é"], None, ["c_int2 é"]]


def test_masks_hide_values_everywhere_and_keep_keys_apart() -> None:
    masks = (("c_text é", "sha256"), ("c_int4 é", "redact"), ("c_float8 é", "null"))
    view = replace(VIEW, masks=masks)  # type: ignore[arg-type]
    old = ROW | {"c_int4 é": "5", "c_float8 é": "1.5"}
    told = encode(view, [Change("u", old | {"c_text é": "b"}, old)], salt=b"salt")
    hashes = [hashlib.sha256(b"salt" + letter).hexdigest() for letter in (b"a", b"b")]
    assert [parsed(each) for each in told.key.to_pylist()] == [
        [("number", "1"), digest] for digest in (hashes[0], hashes[0], hashes[1])
    ]
    before, after = parsed(told.value[0].as_py())["before"], parsed(told.value[2].as_py())["after"]
    for row, digest in ((before, hashes[0]), (after, hashes[1])):
        assert (row["c_text é"], row["c_int4 é"], row["c_float8 é"]) == (digest, "***", None)
        assert row["c_int2 é"] is None


@settings(deadline=None)
@given(st.lists(st.none() | st.text(max_size=200), min_size=1), st.binary(max_size=80))
def test_hashes_are_sha256(texts: list[str | None], salt: bytes) -> None:
    import pyarrow as pa

    from penstock.streams.encoding.masking import masked

    texts = [None if text is None else text.encode("utf-8", "ignore").decode() for text in texts]
    expected = [None if text is None else hashlib.sha256(salt + text.encode()).hexdigest() for text in texts]
    assert masked(pa.array(texts, pa.string()), "sha256", salt).to_pylist() == expected


def test_a_key_cannot_be_redacted() -> None:
    view = replace(VIEW, masks=(("c_text é", "redact"),))
    with pytest.raises(ConfigError, match="part of the key"):
        encode(view, [Change("i", ROW)])


def test_nothing_gives_no_events() -> None:
    events = encoder(EncodingSettings()).encode(changes_of(STREAM, COLUMNS, []), VIEW)
    assert len(events) == 0
    assert events.bytes == 0


def test_large_texts_of_control_characters_have_room() -> None:
    text = "\x01" * 100_000
    (event,) = heard(encode(VIEW, [Change("i", ROW | {"c_text é": text})]))
    assert event[3]["after"]["c_text é"] == text
    assert event[2] == [("number", "1"), text]
