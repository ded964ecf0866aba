"""What Penstock keeps beside an Iceberg table, in a directory of its own.

    _penstock/<schema>/<table>/
      dead_letters/     rows the table could not hold; which files count is said by the table's newest commit,
                        others go with the table's orphans
      letters/          directories of links to those, for readers (`iceberg_letters`)
      index/            what tasks know of data files; a cache, and safe to delete
      staging/          what tasks of a round hand to each other; empty between rounds

It is not inside the table's directory: whoever removes orphan files there would take these for some. Nothing
here decides what the table holds, so nothing is lost with what `sweep` removes: what no round that is under
way can still need, what no reader was given for the grace, and indexes of data files that are gone.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from penstock.destinations import iceberg_letters
from penstock.destinations.records import TableRecord

ABANDONED_AFTER_S = 3600.0


class OwnDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.dead_letters = path / "dead_letters"
        self._letters = path / "letters"
        self._index = path / "index"
        self._staging = path / "staging"

    def index_path(self, location: str) -> Path:
        """Where tasks keep what they know of a data file."""
        # By all of where it lies: files of the same name may lie in several directories.
        return self._index / f"{hashlib.sha256(location.encode()).hexdigest()[:32]}.keys"

    def new_staging(self) -> Path:
        directory = self._staging / secrets.token_hex(8)
        directory.mkdir(parents=True)
        return directory

    def letter_paths(self, record: TableRecord | None) -> tuple[Path, ...]:
        """Of dead letters, in the order of their commits, and of what says which of them are open."""
        names = () if record is None else record.dead_letters.names
        return tuple(self.dead_letters / name for name in names)

    def letters_for_readers(self, record: TableRecord | None) -> Path | None:
        """A directory with the dead letters and nothing else; None if there are none."""
        files = self._shown(record)
        return iceberg_letters.directory_of(files, self._letters) if files else None

    def _shown(self, record: TableRecord | None) -> tuple[Path, ...]:
        names = () if record is None else record.dead_letters.files
        return tuple(self.dead_letters / name for name in names)

    def sweep(self, record: TableRecord, live: Callable[[], Iterable[Path]], grace_s: float) -> None:
        """`live`: indexes of the data files that `record` has, asked for if there are any that may go."""
        old = time.time() - max(grace_s, ABANDONED_AFTER_S)
        for directory in self._staging.glob("*"):
            if directory.stat().st_mtime < old:
                shutil.rmtree(directory, ignore_errors=True)
        iceberg_letters.sweep(self._letters, self._shown(record), time.time() - grace_s)
        indexes = [path for path in self._index.glob("*") if path.stat().st_mtime < old]
        if indexes:
            kept = set(live())
            for path in indexes:
                if path not in kept:
                    path.unlink(missing_ok=True)

    def sweep_letters(self, named: Container[str], modified_before: float) -> int:
        """Remove older files of dead letters that are not named: how many they were."""
        old = [path for path in self.dead_letters.glob("*") if path.stat().st_mtime < modified_before]
        orphans = [path for path in old if path.name not in named]
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
