"""The judge of stream lanes: is each change of the source at the target, once, and in the order of its key?

Read is what any consumer reads: a topic by a `read_committed` consumer, a Kinesis stream shard by shard with
parents before children, a file up to its last commit line. Judged is against two things that the source says
itself: its rows now, printed by `SELECT`, and the history that its triggers have kept (`oracle_history`).
Like `tests.oracle`, this shares no code with Penstock.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle import EXAMPLES_MAX, Row, Table, Value, assert_equal_rows, source_rows
from tests.oracle_history import Change, Layout, audited

#: A tombstone has the name of its delete, and comes behind it.
TOMBSTONE = "n"
Place = tuple[int, int]
BEFORE_ALL: Place = (0, -1)


@dataclass(frozen=True, eq=False)
class Told:
    """One event as a consumer got it. `place` is a partition or a shard; `index` counts in `tx`."""

    table: str
    op: str
    tx: int
    index: int
    key: Row | None
    place: str = ""
    before: Mapping[str, Value] | None = None
    after: Mapping[str, Value] | None = None
    unchanged: frozenset[str] = frozenset()
    xid: str = ""

    @property
    def at(self) -> Place:
        return self.tx, self.index

    @property
    def is_change(self) -> bool:
        return self.op in "cudt"


# -- reading ----------------------------------------------------------------------------------------------


def read_topics(kafka: Any, topics: Mapping[str, str]) -> list[Told]:
    """`topics`: each one's table. `kafka` is a `tests.kafka_server.KafkaServer`."""
    found = []
    for topic, table in topics.items():
        for record in kafka.read(topic):
            place = f"{topic}/{record.partition}"
            if record.value is None:
                tx, index = record.headers["penstock.offset"].decode().split("_")
                found.append(Told(table, TOMBSTONE, int(tx), int(index), _key(record.key), place))
            else:
                told = _told(record.value, _key(record.key), place)
                assert told.table == table, f"an event of {told.table} is in the topic of {table}"
                assert record.headers["penstock.offset"].decode() == f"{told.tx}_{told.index}", (
                    "header, value"
                )
                found.append(told)
    return found


def read_shards(kinesis: Any, stream: str) -> list[Told]:
    """`kinesis` is a `tests.kinesis_server.KinesisServer`, asked itself and not through a proxy."""
    return [
        _told(record.data, _key(record.partition_key.encode()), record.shard)
        for record in kinesis.read(stream)
        if "op" in record.value
    ]


def read_file(path: Path) -> list[Told]:
    """What is above the last commit line."""
    found: list[Told] = []
    waiting: list[Told] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        if not line.endswith(b"\n"):
            break
        if line.startswith(b'{"commit"'):
            found += waiting
            waiting = []
            continue
        entry = json.loads(line, parse_float=_Number)
        key = None if entry["key"] is None else tuple(map(_text, entry["key"]))
        if entry["value"] is not None:
            waiting.append(_told_of(entry["value"], key, "file"))
            assert entry["offset"] == f"{waiting[-1].tx}_{waiting[-1].index}", "offset, value"
    return found


def read_events(events: Iterable[tuple[bytes | None, bytes | None]]) -> list[Told]:
    """Keys and values that a test has collected itself; tombstones are passed over."""
    return [_told(value, _key(key), "memory") for key, value in events if value is not None]


class _Number(str):
    """A number as it was written: turning it into a double and back need not give the same text."""


def _key(text: bytes | None) -> Row | None:
    if text is None or not text.startswith(b"["):  # Kinesis needs some key for every record
        return None
    return tuple(map(_text, json.loads(text, parse_float=_Number)))


def _told(value: bytes, key: Row | None, place: str) -> Told:
    return _told_of(json.loads(value, parse_float=_Number), key, place)


def _told_of(value: Mapping[str, Any], key: Row | None, place: str) -> Told:
    source = value["source"]
    return Told(
        f"{source['schema']}.{source['table']}",
        value["op"],
        int(source["tx"]),
        int(source["op_index"]),
        key,
        place,
        _values(value.get("before")),
        _values(value.get("after")),
        frozenset(value.get("unchanged") or ()),
        str(source["txid"]),
    )


def _values(row: Mapping[str, Any] | None) -> dict[str, Value] | None:
    return None if row is None else {name: _text(value) for name, value in row.items()}


def _text(value: Any) -> Value:
    """As the source prints it. Values of json columns are objects or arrays here, printed as jsonb is."""
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int):
        return str(value)
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


# -- judging ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    changes: int
    loaded: int


def assert_told(
    url: str,
    table: str,
    told: Sequence[Told],
    *,
    since: int | None = None,
    resumed: bool = False,
    by_pages: bool = True,
    one_place: bool = True,
) -> Judged:
    """All that is promised of one table; `told` is everything read, in the order of each place.

    Its history must be audited from its first row on. `since` is the audit's end (`audit_end`) at a time when
    the lane had loaded the table: each change behind it must be told. `resumed`: the load was begun again, so
    changes of a key may stand before its loaded row, and a key may be loaded again; so it is when the table
    was truncated under its load. `by_pages`: not loads by key alone, so an update may have moved a row to
    pages that a load which was begun again had read before; changes alone tell it then. `one_place`: a key
    stays in its partition (topics), as no shard promises.
    """
    own = [each for each in told if each.table == table]
    anew = resumed or any(each.op == "t" for each in own)
    problems = [*_doubled(own, anew=anew), *_out_of_order(own, anew=anew, one_place=one_place)]
    layout, audit = audited(url, table)
    changes = sorted((each for each in own if each.is_change), key=lambda each: each.at)
    problems += _missing(audit, changes, since)
    histories = _Histories(layout, audit, own, changes, anew, anew and by_pages)
    problems += histories.problems
    if problems:
        shown = "\n  ".join(problems[:EXAMPLES_MAX])
        raise AssertionError(f"{table}: {len(problems)} things are not as they happened:\n  {shown}")
    source = source_rows(url, table)
    rows = _folded([*changes, *histories.loaded_at], source.columns, histories.loaded_at)
    assert_equal_rows(f"{table}, folded,", source, Table(source.columns, rows, source.key))
    return Judged(len(changes), len(histories.loaded_at))


def assert_folds(url: str, table: str, told: Iterable[Told], *, resynced: bool = False) -> None:
    """Whoever applies the events of this table, which has no truncates, has the rows that the source has.

    `resynced`: and perhaps rows that were deleted before the lane began anew, of which nobody was told.
    """
    own = [each for each in told if each.table == table]
    last: dict[Row | None, Place] = defaultdict(lambda: BEFORE_ALL)
    loaded_at: dict[Told, Place] = {}
    for each in own:
        if each.op == "r":
            loaded_at[each] = last[each.key]
        elif each.is_change:
            last[each.key] = each.at
    source = source_rows(url, table)
    rows = _folded([each for each in own if each.op != TOMBSTONE], source.columns, loaded_at)
    if resynced:
        key_of = source.by_key()
        keys = set(map(key_of, source.rows))
        rows = [row for row in rows if key_of(row) in keys]
    assert_equal_rows(f"{table}, folded,", source, Table(source.columns, rows, source.key))


def _doubled(told: Sequence[Told], *, anew: bool) -> list[str]:
    counts = Counter((each.at, each.op == TOMBSTONE) for each in told if each.op != "r")
    twice = [f"{at[0]}_{at[1]} is there {count} times" for (at, _), count in counts.items() if count > 1]
    if anew:
        return twice
    loaded = Counter(each.key for each in told if each.op == "r" and each.key is not None)
    return twice + [f"key {key} was loaded {count} times" for key, count in loaded.items() if count > 1]


def _out_of_order(told: Sequence[Told], *, anew: bool, one_place: bool) -> list[str]:
    problems: list[str] = []
    last: dict[Row, Told] = {}
    for each in told:
        if each.key is None:
            continue
        before = last.get(each.key)
        if each.op == "r" and anew:
            continue
        last[each.key] = each
        if before is None:
            continue
        if one_place and before.place != each.place:
            problems.append(f"key {each.key} is in {before.place} and in {each.place}")
        is_behind = each.at > before.at or (
            each.op == TOMBSTONE and each.at == before.at and before.op == "d"
        )
        if not is_behind:
            problems.append(f"key {each.key}: {each.op} {each.at} comes after {before.op} {before.at}")
    return problems


def _missing(audit: Sequence[Change], changes: Sequence[Told], since: int | None) -> list[str]:
    """Transactions are told whole, and all of them since then."""
    expected = Counter(change.xid for change in audit)
    found = Counter(each.xid for each in changes)
    problems = [
        f"transaction {xid} has {found[xid]} of {expected[xid]} changes"
        for xid in found
        if found[xid] != expected[xid]
    ]
    late = {change.xid for change in audit if since is not None and change.number > since}
    return problems + [f"transaction {xid} is missing" for xid in late - found.keys()]


class _Histories:
    """Of each key what happened beside what was told. `loaded_at`: where among changes each loaded row is."""

    def __init__(
        self,
        layout: Layout,
        audit: Sequence[Change],
        own: Sequence[Told],
        changes: Sequence[Told],
        anew: bool,
        may_move: bool,
    ) -> None:
        self._layout = layout
        self._anew = anew
        self._may_move = may_move
        self.loaded_at: dict[Told, Place] = {}
        self.problems: list[str] = []
        history = layout.by_key(audit)
        got: dict[Row, list[Told]] = defaultdict(list)
        loaded: dict[Row, list[tuple[Told, int]]] = defaultdict(list)
        for each in own:
            if each.op == "r" and each.key is not None:
                loaded[each.key].append((each, len(got[each.key])))
            elif each.is_change and each.key is not None:
                got[each.key].append(each)
        truncates = [each for each in changes if each.op == "t"]
        for key in sorted({*history, *got, *loaded}, key=str):
            of_key = sorted([*got[key], *truncates], key=lambda each: each.at)
            if problem := self._of_key(history.get(key, []), of_key, loaded[key]):
                self.problems.append(f"key {', '.join(map(str, key))}: {problem}")

    def _of_key(
        self, happened: Sequence[Change], got: Sequence[Told], loaded: Sequence[tuple[Told, int]]
    ) -> str:
        """`loaded`: rows, each with how many changes of the key came before it."""
        if len(got) > len(happened):
            return f"has {len(got)} changes, but only {len(happened)} were made"
        cut = len(happened) - len(got)
        for place, (change, other) in enumerate(zip(happened[cut:], got, strict=True), start=1):
            if wrong := _unlike(self._layout, change, other):
                return f"change {place} of {len(got)} {wrong}"
        # When a row may have been loaded: at the moment of the first change that was told, or later.
        moments = range(cut, len(happened) + 1) if self._anew else range(cut, cut + 1)
        states = {moment: _state(happened[:moment]) for moment in moments}
        has_moved = self._may_move and any(each.op == "u" and not each.unchanged for each in got)
        if not loaded and None not in states.values() and not has_moved:
            return "was not loaded"
        for each, changes_before in loaded:
            row = _row(self._layout.columns, each.after or {})
            found = [
                moment
                for moment, state in states.items()
                if state == row and changes_before == sum(of.op != "t" for of in got[: moment - cut])
            ]
            if not found:
                return "was loaded with other values, or not among the changes where it had them"
            self.loaded_at[each] = got[found[0] - cut - 1].at if found[0] > cut else BEFORE_ALL
        return ""


def _unlike(layout: Layout, change: Change, told: Told) -> str:
    op = "c" if change.op == "i" else change.op
    if told.op != op:
        return f"should be {op!r}, is {told.op!r}"
    if not told.unchanged <= change.unchanged:
        return f"says that {sorted(told.unchanged - change.unchanged)} did not change"
    if op in "cu":
        after = told.after or {}
        wrong = [
            name
            for name, value in zip(layout.columns, change.row, strict=True)
            if name not in told.unchanged and (name not in after or after[name] != value)
        ]
        return f"has other values in {', '.join(wrong)}" if wrong else ""
    return ""


def _state(happened: Sequence[Change]) -> Row | None:
    """The row of a key after these changes."""
    last = happened[-1] if happened else None
    return last.row if last is not None and last.op in "iu" else None


def _row(columns: Sequence[str], values: Mapping[str, Value]) -> Row:
    return tuple(values.get(name) for name in columns)


def _folded(told: Sequence[Told], columns: Sequence[str], loaded_at: Mapping[Told, Place]) -> list[Row]:
    """The rows that changes, in their order, and loaded rows, each behind a change, lead to."""
    placed = [(loaded_at.get(each, each.at), each.op == "r", each) for each in told]
    state: dict[Row, dict[str, Value]] = {}
    left: tuple[Place, dict[str, Value]] | None = None
    for at, _, each in sorted(placed, key=lambda entry: entry[:2]):
        if each.op == "t":
            state.clear()
            continue
        assert each.key is not None, "tables that are folded have a key"
        if each.op == "d":
            row = state.pop(each.key, None)
            left = (at, row) if row is not None else None
            continue
        # Of a key change, values that were not sent are those of the row under its old key.
        moved = left[1] if left is not None and left[0] == (at[0], at[1] - 1) else {}
        before = state.get(each.key, moved) if each.unchanged else {}
        state[each.key] = {**{name: before.get(name) for name in each.unchanged}, **(each.after or {})}
    return [_row(columns, row) for row in state.values()]
