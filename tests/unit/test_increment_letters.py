"""Of rows that are read again and again, a letter is new if no letter that is open says the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake import increment_letters
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


def test_what_an_open_letter_says_is_known_and_what_history_says_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = [("1", f"text {number}", number) for number in range(50)]
    paths = [
        write(tmp_path / "history-a.parquet", letters(*hot, ("2", "other", 50))),
        write(tmp_path / "changes-a.parquet", letters(("3", "young", 60))),
        write(tmp_path / "open-a.parquet", letters(hot[-1]).select(OPEN_LETTERS.names)),
    ]
    compared = []
    whole = letters_at

    def noted(paths: list[Path], wanted: Flags) -> pa.Table:
        compared.append(int(wanted.sum()))
        return whole(paths, wanted)

    monkeypatch.setattr(increment_letters, "letters_at", noted)
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
