"""Deletion vectors and the files they lie in, against the plain set and against PyIceberg's reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from penstock.core.errors import DestinationError, StorageError
from penstock.destinations.deletion_vectors import Positions, decode, encode, read_vector, write_vector
from penstock.destinations.records import Span

near_edges = st.sampled_from([0, 2**16, 2**31, 2**32, 3 * 2**32]).flatmap(
    lambda edge: st.integers(max(0, edge - 3), edge + 3)
)
runs = st.tuples(st.integers(0, 2**33), st.integers(1, 70_000)).map(lambda run: range(run[0], sum(run)))
positions = st.builds(
    lambda single, run: sorted({*single, *run}),
    st.lists(near_edges | st.integers(0, 2**36)),
    st.just(range(0)) | runs,
)


def array(values: list[int]) -> Positions:
    return np.array(values, np.int64)


@given(positions)
@settings(deadline=None)
def test_a_vector_holds_the_positions_it_was_made_of(deleted: list[int]) -> None:
    vector = encode(array(deleted))
    assert decode(vector).tolist() == deleted
    assert BitMap64.deserialize(vector[8:-4]) == BitMap64(deleted)


def test_a_vector_is_framed_as_the_specification_says() -> None:
    """Byte by byte: length, magic, count of bitmaps, key, cookie, one container of one value, CRC-32."""
    bitmap = "0100000000000000 00000000 3a300000 01000000 0000 0000 10000000 0500"
    assert encode(array([5])).hex() == f"00000022 d1d33964 {bitmap} 8ad140f0".replace(" ", "")


@given(st.data())
def test_a_vector_that_was_damaged_is_refused(data: st.DataObject) -> None:
    vector = bytearray(encode(array([1, 5, 70_000])))
    place = data.draw(st.integers(0, len(vector) - 1))
    vector[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match=r"vector|checksum"):
        decode(bytes(vector))
    with pytest.raises(ValueError, match="vector"):
        decode(encode(array([1, 5, 70_000]))[: data.draw(st.integers(0, len(vector) - 1))])


@given(st.sets(st.integers(0, 2**32 - 1), min_size=1).map(sorted))
def test_a_file_is_read_by_its_place_and_by_others_by_its_footer(
    tmp_path_factory: pytest.TempPathFactory, deleted: list[int]
) -> None:
    path = tmp_path_factory.mktemp("vectors") / "a.puffin"
    written = write_vector(path, "a.parquet", "/lake/a.parquet", array(deleted))
    assert (written.of, written.file.name, written.file.rows) == ("a.parquet", "a.puffin", len(deleted))
    assert written.file.bytes == path.stat().st_size
    assert written.vector is not None
    assert read_vector(path, written.vector).tolist() == deleted
    [by_footer] = deletion_vectors_from_puffin_file(PuffinFile(path.read_bytes()))
    assert by_footer.referenced_data_file == "/lake/a.parquet"
    assert by_footer.to_vector().to_pylist() == deleted


def test_a_file_that_could_not_be_written_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "destination.file_write=enospc")
    monkeypatch.setattr("penstock.failpoints._reached", {})
    with pytest.raises(StorageError, match="disk is full"):
        write_vector(tmp_path / "a.puffin", "a", "/a", array([1]))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_damaged_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.puffin").write_bytes(b"PFA1" + b"\0" * 60)
    with pytest.raises(DestinationError, match="cannot be read") as refused:
        read_vector(tmp_path / "a.puffin", Span(4, 40))
    assert refused.value.remedy
