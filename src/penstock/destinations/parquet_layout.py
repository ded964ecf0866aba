"""How a Parquet table lies on disk, and the file operations its commits are made of.

    <table>/
      _files/                     every data file, under a name that never repeats
      _dead_letters/              rows the table could not hold
      _staging/                   what tasks of a round hand to each other; empty between rounds
      _commits/<n>.json           commit records; creating one exclusively is the commit
      v<n>-<random>/              an immutable version, of the table or of its dead letters: hard links to
                                  its files, nothing else
      current -> v<n>-<random>    the newest version, for readers; replaced by rename

`current` is a copy of what the newest record says, never the other way round. A version directory is
complete and durable before its record is created, and does not change afterwards (correctness 20).

A reader that lists `current` lists one version, but opens its files by names that begin with `current/`
again, and a switch may come between. Some readers (pyarrow, Spark) pass over a listed name that is gone by
the time they look at it: if versions shared names, such a reader would silently keep the shared files and
miss the others. So the names in a version begin with its number and no two versions have one in common:
across a switch a reader gets the whole version or finds nothing of it, never a part. A reader that resolves
the link first (`penstock table path`) is not disturbed at all for the grace period.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from penstock import durable
from penstock.core.errors import DestinationError
from penstock.core.stream import StreamId, escape_file_name
from penstock.destinations.records import TableRecord

# Links impossible here: other file system, not supported, not permitted, too many links to one file.
_CANNOT_LINK = (errno.EXDEV, errno.ENOTSUP, errno.EPERM, errno.EMLINK, errno.ENOSYS)
_VERSION_NAME = re.compile(r"\Av(\d{20})-[0-9a-f]{8}\Z")


class TableLayout:
    def __init__(self, root: Path, stream: StreamId) -> None:
        self.root = root
        self.stream = stream
        self.directory = root / escape_file_name(stream.namespace) / escape_file_name(stream.name)
        self.files = self.directory / "_files"
        self.dead_letters = self.directory / "_dead_letters"
        self.staging = self.directory / "_staging"
        self.commits = self.directory / "_commits"
        self.current = self.directory / "current"

    # Commit records

    def versions(self) -> list[int]:
        """The numbers of the records kept, in order."""
        try:
            paths = list(self.commits.iterdir())
        except FileNotFoundError:
            return []
        return sorted(int(path.stem) for path in paths if path.suffix == ".json" and path.stem.isdigit())

    def record_path(self, version: int) -> Path:
        return self.commits / f"{version:020d}.json"

    def newest_record(self) -> TableRecord | None:
        while True:
            versions = self.versions()
            if not versions:
                return None
            try:
                return self.read_record(versions[-1])
            except FileNotFoundError:
                continue  # listed, overtaken by a hundred commits and pruned: list again

    def read_record(self, version: int) -> TableRecord:
        path = self.record_path(version)
        content = path.read_bytes()
        try:
            return TableRecord.from_json(json.loads(content))
        except (ValueError, KeyError, TypeError) as error:
            raise DestinationError(
                f"The commit record {path} cannot be read.",
                stream=str(self.stream),
                remedy="Restore it from a backup, or run `penstock resync` for this stream.",
            ) from error

    def create_record(self, record: TableRecord) -> bool:
        """The commit; False if another writer has this number."""
        return durable.create_exclusively(
            self.record_path(record.version), durable.to_json_bytes(record.to_json())
        )

    # Versions

    def version_directories(self) -> dict[str, int]:
        """Names of all version directories with the number each was made for."""
        matches = (_VERSION_NAME.match(path.name) for path in self.directory.iterdir())
        return {match[0]: int(match[1]) for match in matches if match is not None}

    def build_version(self, version: int, file_names: Iterable[str], source: Path | None = None) -> str:
        """A durable directory with these files (of `source`, else data files); nothing refers to it yet."""
        name = f"v{version:020d}-{secrets.token_hex(4)}"
        directory = self.directory / name
        with durable.storage_errors(f"Could not make a version of the table in {self.directory}."):
            directory.mkdir()
            for file_name in file_names:
                link_or_copy((source or self.files) / file_name, directory / f"{version}-{file_name}")
            durable.sync_directory(directory)
            durable.sync_directory(self.directory)
        return name

    def remove_version(self, name: str) -> None:
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def current_version(self) -> str | None:
        try:
            return self.current.readlink().name
        except FileNotFoundError:
            return None

    def switch(self, name: str) -> None:
        """Let `current` show this version, atomically and durably."""
        temporary = self.directory / f".current.{secrets.token_hex(8)}"
        with durable.storage_errors(f"Could not switch the table in {self.directory}."):
            temporary.symlink_to(name, target_is_directory=True)
            os.replace(temporary, self.current)
            durable.sync_directory(self.directory)

    # Directories

    def make_directories(self) -> None:
        """All of the table's directories, durable up to the destination's root."""
        with durable.storage_errors(f"Could not make the table's directory {self.directory}."):
            for directory in (self.files, self.commits):
                make_directory(directory)

    def sync_files(self) -> None:
        """Make the names of data files durable; their content was synced by whoever wrote them."""
        with durable.storage_errors(f"Could not write in {self.directory}."):
            for directory in (self.files, self.dead_letters):
                if directory.exists():
                    durable.sync_directory(directory)


def make_directory(path: Path) -> None:
    """Like mkdir -p, with every new name durable."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        durable.sync_directory(path.parent)


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        shutil.copyfile(source, target)
        durable.sync_file(target)
