"""Dead letters on the screen: values are not even read until somebody asks for them, and then in bounds;
lists are filtered and come by pages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.config import Config
from penstock.console import shown_values, table_letters
from penstock.console.screens import LETTER_BYTES_MAX, Screens
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.parquet_layout import TableLayout
from penstock.destinations.records import DeadLetters as LettersOfTable
from penstock.destinations.records import TableRecord
from penstock.lake.dead_letters import DEAD_LETTERS
from penstock.streams.dead_letters import Dead, DeadLetters
from penstock.streams.events import CREATE
from penstock.streams.letter_file import LetterFile, dead_letters_path
from tests.idle_pipeline import idle_pipeline
from tests.publishing import STREAMS, events, term

pytestmark = pytest.mark.unit

ORDERS = StreamId("public", "orders")


def config(directory: Path) -> Config:
    return Config.load(idle_pipeline(directory, lanes={"file": {"path": "./events"}}))


def screens(directory: Path) -> Screens:
    return Screens(config(directory), directory / "penstock.yaml")


def table_with_letters(directory: Path, *files: list[dict[str, Any]]) -> None:
    """Files of two letters in a row group each."""
    layout = TableLayout(config(directory).destination.directory, ORDERS)
    layout.dead_letters.mkdir(parents=True)
    layout.commits.mkdir(parents=True, exist_ok=True)
    names = [f"{number}.parquet" for number in range(len(files))]
    for name, letters in zip(names, files, strict=True):
        pq.write_table(
            pa.Table.from_pylist(letters, DEAD_LETTERS), layout.dead_letters / name, row_group_size=2
        )
    schema = TableSchema(ORDERS, (SourceColumn("id", 25, -1, "text", "text"),), key=("id",))
    of_table = LettersOfTable(sum(map(len, files)), tuple(names))
    record = TableRecord(1, "changes", "then", Lsn(1), "upsert", schema, "v1", dead_letters=of_table)
    assert layout.create_record(record)


def letter(number: int, reason: str = "does not fit", value: str = "secret") -> dict[str, Any]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    own = {"_op": "u", "_tx": number, "_op_index": 0, "_commit_ts": at, "_dead_at": at, "_bad_columns": ["n"]}
    row = [{"column": "id", "value": str(number)}, {"column": "n", "value": value}]
    return own | {"_reason": reason, "_key": [str(number)], "_row": row}


def numbers(found: dict[str, Any]) -> list[int]:
    return [int(each["offset"].partition("_")[0]) for each in found["shown"]]


def test_letters_of_a_table_are_listed_without_reading_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_with_letters(tmp_path, [letter(1), letter(2), letter(3)], [letter(4)])
    read: list[str] = []
    whole = pq.ParquetFile.read_row_group

    def reading(self: pq.ParquetFile, group: int, columns: list[str]) -> pa.Table:
        read.extend(columns)
        return whole(self, group, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", reading)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    found = screens(tmp_path).looks()["letters.lake"]({"stream": "public.orders"})
    assert numbers(found) == [4, 3, 2, 1]
    assert read
    assert not {"_row", "_key"} & set(read)
    assert "secret" not in str(found)


def test_values_of_a_tables_letters_stand_beside_their_letters(tmp_path: Path) -> None:
    letters = [letter(n, "too long" if n % 2 else "no number", f"secret {n}") for n in range(1, 8)]
    table_with_letters(tmp_path, letters[:5], letters[5:])
    asked = screens(tmp_path).values()["letters.lake"]
    found = asked({"stream": "public.orders", "text": "TOO long"})
    assert numbers(found) == [7, 5, 3, 1]
    assert [(each["key"], each["row"]["n"]) for each in found["shown"]] == [
        ([str(n)], f"secret {n}") for n in (7, 5, 3, 1)
    ]
    assert asked({"stream": "public.orders", "text": "unheard of"})["shown"] == []


def test_a_tables_letters_come_by_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_letters, "LETTERS_SHOWN", 3)
    table_with_letters(tmp_path, [letter(n) for n in range(1, 6)], [letter(6), letter(7)])
    asked = screens(tmp_path).looks()["letters.lake"]
    pages = [asked({"stream": "public.orders", "skip": str(skip)}) for skip in (0, 3, 6)]
    assert [numbers(page) for page in pages] == [[7, 6, 5], [4, 3, 2], [1]]
    assert [page["more"] for page in pages] == [True, True, False]


def test_no_more_letters_are_looked_at_than_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_letters, "LOOKED_MAX", 2)
    table_with_letters(tmp_path, [letter(1, "rare")], [letter(2)], [letter(3)])
    asked = screens(tmp_path).looks()["letters.lake"]
    found = asked({"stream": "public.orders", "text": "rare"})
    assert (numbers(found), found["more"], found["only_newest"]) == ([], False, 2)
    monkeypatch.setattr(table_letters, "LOOKED_MAX", 3)
    found = asked({"stream": "public.orders", "text": "rare"})
    assert (numbers(found), found["more"], found["only_newest"]) == ([1], False, None)


def test_values_of_one_answer_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_values, "CHARACTERS_MAX", 10)
    monkeypatch.setattr(shown_values, "CHARACTERS_OF_ALL_MAX", 14)
    table_with_letters(tmp_path, [letter(n, value="x" * 100) for n in (1, 2)])
    newest, oldest = screens(tmp_path).values()["letters.lake"]({"stream": "public.orders"})["shown"]
    assert newest["row"]["n"] == "x" * 10 + "… (90 more characters)"
    assert oldest["row"]["n"] == shown_values.NOT_SHOWN


def lane_with_letters(directory: Path, *whys: tuple[str, str], value: bytes = b"secret") -> Path:
    path = dead_letters_path(config(directory).state, "file")
    with DeadLetters(path, "file") as letters:
        letters.begin(term(1), None)
        for batch, (code, reason) in enumerate(whys, 1):
            written = events(STREAMS[0], batch, [(0, CREATE, f"[{batch}]".encode(), value)])
            letters.write([Dead(written, [(code, reason, 1)], np.full(1, batch), np.arange(1))])
    return path


def test_values_of_a_lanes_letters_are_not_read_until_asked_for(tmp_path: Path) -> None:
    path = lane_with_letters(tmp_path, ("poison", "is poison"), value=b"s" * (LETTER_BYTES_MAX + 1))
    file = LetterFile(path)
    try:
        (hidden,) = file.letters("true", bytes_max=0)
        (part,) = file.letters("true", bytes_max=2)
    finally:
        file.close()
    assert (hidden.key, hidden.value) == (None, None)
    assert (part.key, part.value) == (b"[1", b"ss")
    both = screens(tmp_path)
    (listed,) = both.looks()["letters.lane"]({"lane": "file"})["shown"]
    assert not {"key", "value"} & set(listed)
    (asked,) = both.values()["letters.lane"]({"lane": "file"})["shown"]
    assert asked["key"] == "[1]"
    assert asked["value"] == "s" * LETTER_BYTES_MAX + "…"


def test_a_lanes_letters_are_filtered_and_come_by_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whys = [("too_large", f"has 100% of {n}") if n % 2 else ("poison", "is poison") for n in range(6)]
    lane_with_letters(tmp_path, *whys)
    asked = screens(tmp_path).looks()["letters.lane"]
    monkeypatch.setattr("penstock.console.screens.LETTERS_SHOWN", 2)
    first = asked({"lane": "file", "text": "TOO_LARGE"})
    assert [each["why"] for each in first["shown"]] == ["has 100% of 5", "has 100% of 3"]
    assert (first["dead_letters"], first["more"]) == (3, True)
    rest = asked({"lane": "file", "text": "too_large", "skip": "2"})
    assert [each["why"] for each in rest["shown"]] == ["has 100% of 1"]
    assert not rest["more"]
    assert asked({"lane": "file", "text": "100%"})["dead_letters"] == 3
    assert asked({"lane": "file", "text": "%poison%"})["dead_letters"] == 0, "a text, and no pattern"
    assert asked({"lane": "file"})["dead_letters"] == 6
