"""Readers of dead letters get a directory of what was committed, and it stays as it was given."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.destinations.iceberg_letters import directory_of, sweep

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "all" / f"{name}.parquet" for name in ("a", "b", "of a round that was cut short")]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_text(path.name)
    return paths[:2]


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_directory_has_what_was_committed_and_does_not_change(files: list[Path], tmp_path: Path) -> None:
    parent = tmp_path / "letters"
    first = directory_of(files[:1], parent)
    both = directory_of(files, parent)
    assert names_in(first) == ["a.parquet"]
    assert names_in(both) == ["a.parquet", "b.parquet"]
    assert directory_of(files[:1], parent) == first
    assert names_in(parent) == sorted([first.name, both.name])


def test_a_directory_stays_while_it_is_current_or_was_given_lately(files: list[Path], tmp_path: Path) -> None:
    parent = tmp_path / "letters"
    old, current = directory_of(files[:1], parent), directory_of(files, parent)
    an_hour_ago = time.time() - 3600
    for directory in (old, current):
        os.utime(directory, (an_hour_ago, an_hour_ago))
    assert directory_of(files[:1], parent) == old  # given again just now
    sweep(parent, files, time.time() - 60)
    assert names_in(parent) == sorted([old.name, current.name])
    os.utime(old, (an_hour_ago, an_hour_ago))
    sweep(parent, files, time.time() - 60)
    assert names_in(parent) == [current.name]
