"""Of rows that are read again and again, a letter is new if no letter that is open says the same."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake import dead_letters, increment_letters
from penstock.lake.change_set import Flags
from penstock.lake.dead_letters import DEAD_LETTERS, OPEN_LETTERS, letters_at
from penstock.lake.increment_letters import KnownLetters
from penstock.lake.target import Target

pytestmark = pytest.mark.unit

SCHEMA = TableSchema(
    StreamId("public", "t"),
    (SourceColumn("id", 20, -1, "int8", "bigint"), SourceColumn("v", 25, -1, "text", "text")),
    ("id",),
)


def letters(*rows: tuple[str, str, int]) -> pa.Table:
    """Key, text and position of each."""
    return pa.Table.from_pylist(
        [
            {"_op": "r", "_tx": at, "_op_index": 0, "_key": [key], "_row": [("id", key), ("v", text)]}
            for key, text, at in rows
        ],
        DEAD_LETTERS,
    )


def write(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def rows_compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows are read each time."""
    compared: list[int] = []

    def noted(paths: list[Path], wanted: Flags) -> pa.Table:
        compared.append(int(wanted.sum()))
        return letters_at(paths, wanted)

    monkeypatch.setattr(increment_letters, "letters_at", noted)
    return compared


def test_what_an_open_letter_says_is_known_and_what_history_says_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = [("1", f"text {number}", number) for number in range(50)]
    paths = [
        write(tmp_path / "history-a.parquet", letters(*hot, ("2", "other", 50))),
        write(tmp_path / "changes-a.parquet", letters(("3", "young", 60))),
        write(tmp_path / "open-a.parquet", letters(hot[-1]).select(OPEN_LETTERS.names)),
    ]
    compared = rows_compared(monkeypatch)
    known = KnownLetters(paths, Target(SCHEMA, "upsert"))
    came = letters(
        ("1", "text 49", 70), ("1", "text 7", 70), ("2", "other", 70), ("3", "young", 70), ("4", "new", 70)
    )
    fresh = known.fresh(came.to_batches()[0])
    assert [row[1]["value"] for row in fresh.column("_row").to_pylist()] == ["text 7", "other", "new"]
    assert compared == [2], "no more letters are compared than are open"


def test_of_an_append_table_every_letter_is_known_that_ever_was(tmp_path: Path) -> None:
    path = write(tmp_path / "history-a.parquet", letters(("1", "a", 1), ("1", "b", 2)))
    known = KnownLetters([path], Target(SCHEMA, "append"))
    fresh = known.fresh(letters(("1", "a", 3), ("1", "c", 3)).to_batches()[0])
    assert [row[1]["value"] for row in fresh.column("_row").to_pylist()] == ["c"]


def test_letters_of_one_round_that_share_an_offset_are_not_read_for_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = (SourceColumn("tenant", 25, -1, "text", "text"), *SCHEMA.columns)
    target = Target(replace(SCHEMA, columns=columns, key=("tenant", "id")), "upsert")

    def of_a_tenant(*rows: tuple[int, str]) -> pa.Table:
        several = letters(*((str(number), text, 5) for number, text in rows))
        keys = pa.array([["t", str(number)] for number, _ in rows])
        return several.set_column(several.column_names.index("_key"), "_key", keys)

    path = write(tmp_path / "changes-a.parquet", of_a_tenant(*((number, "text") for number in range(1000))))
    compared = rows_compared(monkeypatch)
    came = of_a_tenant((7, "text"), (8, "other"), (1000, "text"))
    fresh = KnownLetters([path], target).fresh(came.to_batches()[0])
    assert fresh.column("_key").to_pylist() == [["t", "8"], ["t", "1000"]]
    assert compared == [2]


@pytest.mark.parametrize("key", [(), ("id",)], ids=["without a key", "with a key"])
def test_however_many_letters_an_append_table_has_a_batch_of_them_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    monkeypatch.setattr(dead_letters, "_BATCH_ROWS", 500)
    path = write(tmp_path / "history-a.parquet", letters(*(("1", f"{at:0500}", at) for at in range(20_000))))
    known = KnownLetters([path], Target(replace(SCHEMA, key=key), "append"))
    came = letters(("1", f"{19_999:0500}", 1), ("1", "new", 1)).to_batches()[0]
    tracemalloc.start()
    try:
        fresh = known.fresh(came)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row[1]["value"] for row in fresh.column("_row").to_pylist()] == ["new"]
    assert most < 2_000_000, "of ten million bytes of text"
