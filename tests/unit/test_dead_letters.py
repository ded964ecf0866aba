"""Dead letters as data: keys there and back, which letters are open, and values as the source prints them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake import dead_letters
from penstock.lake.dead_letters import (
    DEAD_LETTERS,
    SETTLED_KEYS,
    dead_letter_rows,
    key_columns,
    key_lists,
    newest_of_each,
    open_letters,
    read_dead_letters,
    unknown_letters,
)
from penstock.lake.printing import print_values
from penstock.lake.target import Target
from penstock.sources.postgres.types import cast_text

TARGET = Target(
    TableSchema(
        StreamId("public", "t"),
        (
            SourceColumn("a", 23, -1, "int4", "integer", 1),
            SourceColumn("b", 25, -1, "text", "text", 2),
            SourceColumn("until", 1082, -1, "date", "date", 3),
        ),
        key=("b", "a"),
    ),
    "upsert",
    {"until": "valid_until"},
)


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=8))
def test_keys_are_the_same_there_and_back(keys: list[tuple[str, str]]) -> None:
    columns = [pa.array([key[place] for key in keys], pa.string()) for place in range(2)]
    lists = key_lists(columns, len(keys))
    assert lists.to_pylist() == [list(key) for key in keys]
    back = key_columns(lists, 2)
    assert [tuple(row.values()) for row in back.to_pylist()] == keys
    assert all(value is None for row in key_columns(lists, 3).to_pylist() for value in row.values())


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_the_newest_row_of_each_number_is_found(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    found = {int(columns[0][place]): int(place) for place in newest_of_each(*columns)}
    expected: dict[int, int] = {}
    for place, (number, tx, op_index) in enumerate(rows):
        newest = expected.get(number)
        if number >= 0 and (newest is None or (tx, op_index) >= rows[newest][1:]):
            expected[number] = place
    assert found == expected


def text(*rows: tuple[str | None, ...]) -> pa.Table:
    return pa.table(
        [pa.array(column, pa.string()) for column in zip(*rows, strict=True)], names=["a", "b", "until"]
    )


def test_a_letter_holds_the_row_by_the_names_of_the_source() -> None:
    rows = text(("1", "x", "2024-01-01"), ("2", None, "infinity"), ("3", "z", "-infinity"))
    bad = {"until": np.array([False, True, True])}
    letters = dead_letter_rows(rows, bad, TARGET).to_pylist()
    assert [letter["_key"] for letter in letters] == [[None, "2"], ["z", "3"]]
    assert letters[1]["_row"] == [
        {"column": "a", "value": "3"},
        {"column": "b", "value": "z"},
        {"column": "until", "value": "-infinity"},
    ]
    assert {letter["_reason"] for letter in letters} == {"until is infinite"}
    assert {letter["_op"] for letter in letters} == {"r"}


def test_reasons_name_every_column_that_is_unfit_and_no_other() -> None:
    rows = text(("x", "k", "infinity"), ("1", "k", "infinity"), ("y", "k", "2024-01-01"))
    bad = {"a": np.array([True, False, True]), "until": np.array([True, True, False])}
    letters = dead_letter_rows(rows, bad, TARGET).to_pylist()
    assert [letter["_bad_columns"] for letter in letters] == [["a", "until"], ["until"], ["a"]]
    assert letters[0]["_reason"] == "a cannot be read as integer; until is infinite"


def write(path: Path, name: str, offsets: list[tuple[str, int, int]]) -> Path:
    schema = SETTLED_KEYS if name.startswith("settled-") else DEAD_LETTERS
    rows = [
        {"_op": "u", "_tx": tx, "_op_index": op_index, "_key": [key, key], "_row": [("a", key)]}
        for key, tx, op_index in offsets
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema), path / name)
    return path / name


def test_letters_are_open_until_a_later_change_settles_them(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, "load-1.parquet", [("a", 0, 0), ("b", 0, 0), ("c", 0, 0)]),
        write(tmp_path, "changes-1.parquet", [("c", 10, 2), ("d", 12, 0)]),
        write(tmp_path, "settled-1.parquet", [("a", 9, 0), ("c", 10, 0), ("d", 12, 0)]),
    ]
    assert sorted(key[0] for key in open_letters(paths, 2).column("_key").to_pylist()) == ["b", "c"]
    assert open_letters(paths, 1).num_rows == 0, "a key of another width is no key of the table"
    assert open_letters((), 2).num_rows == 0
    assert read_dead_letters(paths).num_rows == 5


def test_of_what_is_applied_again_only_letters_that_were_none_are_new(tmp_path: Path) -> None:
    """One that lacks a value has the offset of its batch's end: it is known by its key, if that is open."""
    before = [
        write(tmp_path, "a.parquet", [("x", 10, 0), ("y", 20, 2), ("z", 90, 0)]),
        write(tmp_path, "settled-a.parquet", [("y", 30, 0)]),
    ]
    again = [("x", 10, 0), ("y", 20, 2), ("z", 100, 0), ("y", 100, 0), ("w", 40, 0), ("v", 100, 0)]
    left, lacking = unknown_letters(before, [write(tmp_path, "b.parquet", again)], Lsn(100), 2)
    assert [key[0] for key in left.column("_key").to_pylist()] == ["y", "w", "v"]
    assert lacking == 2


def test_a_row_that_lacks_a_value_is_not_taken_for_another_that_lacked_one_in_the_same_batch(
    tmp_path: Path,
) -> None:
    """Their offsets are the same: it would be neither in the table, nor a letter, nor a reason to load."""
    before = [write(tmp_path, "a.parquet", [("x", 100, 0)])]
    again = [write(tmp_path, "b.parquet", [("x", 100, 0), ("y", 100, 0)])]
    left, lacking = unknown_letters(before, again, Lsn(100), 2)
    assert [key[0] for key in left.column("_key").to_pylist()] == ["y"]
    assert lacking == 1


def test_of_letters_that_are_known_no_row_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noted(self: pq.ParquetFile, *args: Any, columns: list[str] | None = None, **more: Any) -> pa.Table:
        read.extend(columns or self.schema_arrow.names)
        return whole(self, *args, columns=columns, **more)

    whole = pq.ParquetFile.read
    monkeypatch.setattr(pq.ParquetFile, "read", noted)
    offsets = [(f"k{number}", number, 0) for number in range(40)]
    before = [write(tmp_path, "a.parquet", offsets)]
    known = [write(tmp_path, f"b{part}.parquet", offsets[part::4]) for part in range(4)]
    assert unknown_letters(before, known, Lsn(100), 2)[0].num_rows == 0
    assert set(read) == {"_tx", "_op_index", "_commit_ts"}
    monkeypatch.setattr(dead_letters, "_BATCH_ROWS", 2)
    mixed = [("k3", 3, 0), ("n1", 41, 0), ("k4", 4, 0), ("n2", 42, 0), ("n3", 43, 0)]
    left, lacking = unknown_letters(before, [*known, write(tmp_path, "c.parquet", mixed)], Lsn(100), 2)
    assert [row[0]["value"] for row in left.column("_row").to_pylist()] == ["n1", "n2", "n3"]
    assert (left.schema, lacking) == (DEAD_LETTERS, 0)
    assert not {"_key", "_row"}.intersection(read)


def test_letters_of_the_first_format_are_read(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["7"],
            "until": ["infinity"],
            "_op": ["u"],
            "_tx": [5],
            "_op_index": [2],
            "_bad_columns": [["until"]],
        }
    )
    pq.write_table(table, tmp_path / "changes-1.parquet")
    [letter] = read_dead_letters([tmp_path / "changes-1.parquet"]).to_pylist()
    assert letter["_row"] == [{"column": "id", "value": "7"}, {"column": "until", "value": "infinity"}]
    assert (letter["_tx"], letter["_bad_columns"], letter["_key"]) == (5, ["until"], None)
    assert open_letters([tmp_path / "changes-1.parquet"], 1).num_rows == 0


PRINTED = {
    "timestamptz": [
        "2024-01-01 12:00:00.5+00",
        "0044-03-15 00:00:00+00 BC",
        "12024-01-01 00:00:00.000001+00",
    ],
    "timestamp": ["1969-12-31 23:59:59.999999", "0001-01-01 00:00:00"],
    "date": ["2024-02-29", "0001-12-31 BC", "12024-01-01"],
    "bool": ["t", "f"],
    "bytea": ["\\x", "\\x00ff"],
    "int8": ["-9223372036854775808"],
    "text": ["ü", ""],
}


def test_what_a_key_is_made_of_is_printed_as_the_source_prints_it() -> None:
    for type_name, texts in PRINTED.items():
        values = cast_text(pa.array([*texts, None]), SourceColumn("c", 0, -1, type_name, type_name)).values
        assert print_values(pa.chunked_array([values])).to_pylist() == [*texts, None]


@given(st.datetimes(dt.datetime(1, 1, 1)))
@settings(max_examples=200)
def test_every_instant_is_printed_as_it_is_read(moment: dt.datetime) -> None:
    column = SourceColumn("c", 0, -1, "timestamp", "timestamp")
    printed = print_values(pa.chunked_array([pa.array([moment], pa.timestamp("us"))]))
    assert cast_text(printed, column).values.to_pylist() == [moment]
