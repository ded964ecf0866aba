"""The index of a file's keys finds exactly the rows that a plain dictionary would."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.key_index import (
    KeyForm,
    KeyWords,
    _siphash,
    find,
    key_words,
    no_keys,
    open_index,
    write_index,
)

SECRET = bytes(range(16))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)),
    "text": (pa.string(), st.text(max_size=12) | st.sampled_from(["", "a", "ab"])),
    "uuid": (pa.string(), st.uuids().map(str)),
    "date": (pa.date32(), st.dates()),
    "bytes": (pa.binary(), st.binary(max_size=20)),
    "decimal": (pa.decimal128(30, 2), st.decimals(-(10**20), 10**20, places=2)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
}


def pairs(wanted: pa.Table, held: pa.Table) -> set[tuple[int, int]]:
    """What `find` must give, by comparing every key with every other; a null is equal to nothing."""
    rows = [tuple(row.values()) for row in held.to_pylist()]
    return {
        (i, j)
        for i, row in enumerate(wanted.to_pylist())
        for j, other in enumerate(rows)
        if tuple(row.values()) == other and None not in other
    }


def found(wanted: KeyWords, held: KeyWords) -> set[tuple[int, int]]:
    return set(zip(*(positions.tolist() for positions in find(wanted, held)), strict=True))


@given(st.data())
def test_it_finds_what_comparing_every_pair_finds(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True))
    form = KeyForm(SECRET, exact_uuid=kinds == ["uuid"])
    pool = data.draw(
        st.lists(st.tuples(*(COLUMNS[kind][1] | st.none() for kind in kinds)), min_size=1, max_size=12)
    )

    def table() -> pa.Table:
        rows = data.draw(st.lists(st.sampled_from(pool), max_size=20))
        columns = [pa.array([row[i] for row in rows], COLUMNS[kind][0]) for i, kind in enumerate(kinds)]
        return pa.table(columns, names=kinds)

    wanted, held = table(), table()
    assert found(key_words(wanted, form), key_words(held, form)) == pairs(wanted, held)


@pytest.mark.parametrize(("few", "many"), [(10, 5000), (5000, 10), (3000, 3000)])
def test_many_random_keys_are_found_wherever_they_lie(few: int, many: int) -> None:
    random = np.random.default_rng(few)
    wanted, held = (pa.table({"id": random.integers(0, 6000, size)}) for size in (few, many))
    form = KeyForm(SECRET)
    assert found(key_words(wanted, form), key_words(held, form)) == pairs(wanted, held)


def test_an_index_that_was_written_is_opened_again_and_only_by_the_same_form(tmp_path: Path) -> None:
    keys = pa.table({"id": [str(uuid.UUID(int=i * 7919)) for i in (5, 3, 9)]})
    form, path = KeyForm(SECRET, exact_uuid=True, types=("string",)), tmp_path / "index" / "a.keys"
    assert open_index(path, form, 3) is None
    write_index(path, key_words(keys, form), form, 3)
    opened = open_index(path, form, 3)
    assert open_index(path, form, 4) is None
    assert opened is not None
    assert found(key_words(keys, form), opened) == {(0, 0), (1, 1), (2, 2)}
    assert found(no_keys(), opened) == set()
    assert open_index(path, KeyForm(bytes(16), exact_uuid=True, types=("string",)), 3) is None
    path.write_bytes(path.read_bytes()[:-1])
    assert open_index(path, form, 3) is None


def test_an_empty_index_can_be_written_and_asked(tmp_path: Path) -> None:
    form = KeyForm(SECRET)
    words = key_words(pa.table({"id": pa.array([], pa.int64())}), form)
    write_index(tmp_path / "a.keys", words, form, 0)
    opened = open_index(tmp_path / "a.keys", form, 0)
    assert opened is not None
    assert len(opened) == 0
    assert found(key_words(pa.table({"id": [1]}), form), opened) == set()


def test_the_hash_is_siphash_with_128_bits() -> None:
    """Against values that its authors publish, for the key 00 01 … 0f."""
    data = np.arange(15, dtype=np.uint8)
    high, low = (np.repeat(np.frombuffer(SECRET, np.uint64)[word], 3) for word in (0, 1))
    _siphash(data, np.array([0, 0, 1, 15]), high, low)
    digests = [
        (int(a).to_bytes(8, "little") + int(b).to_bytes(8, "little")).hex()
        for a, b in zip(high, low, strict=True)
    ]
    assert digests[:2] == ["a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45"]
