"""Dead letters of an Iceberg table as a directory that can be given to readers.

The files lie beside the warehouse's tables; which of them count is said by the table's newest commit. Among
them lie files of rounds that were cut short, and of the time before a load. So readers get a directory of
links to what was committed, named by its content: it is made when somebody asks, aside and then renamed, and
never changes. Asking makes it young again: it stays for `readers.grace` after it was last given to somebody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from penstock import durable
from penstock.destinations.parquet_layout import link_or_copy


def directory_of(files: Sequence[Path], parent: Path) -> Path:
    """The directory below `parent` with links to exactly these files."""
    shown = parent / _name_of(files)
    with durable.storage_errors(f"Could not make a directory of dead letters in {parent}."):
        if not shown.exists():
            _make(files, shown)
        os.utime(shown)
    return shown


def sweep(parent: Path, current: Sequence[Path], modified_before: float) -> None:
    """Remove directories that were not asked for since then, but that of the `current` files."""
    for directory in parent.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if directory.name != _name_of(current) and directory.stat().st_mtime < modified_before:
                shutil.rmtree(directory, ignore_errors=True)


def _name_of(files: Sequence[Path]) -> str:
    return hashlib.sha256("/".join(file.name for file in files).encode()).hexdigest()[:32]


def _make(files: Sequence[Path], shown: Path) -> None:
    aside = shown.with_name(f"{shown.name}.{secrets.token_hex(8)}")
    aside.mkdir(parents=True)
    for file in files:
        link_or_copy(file, aside / file.name)
    try:
        aside.rename(shown)
    except OSError:
        if not shown.exists():
            raise
        shutil.rmtree(aside, ignore_errors=True)  # somebody else was asked at the same time
