"""What Iceberg's own code writes to a local file system, made as durable as our data files are.

Iceberg closes its files and leaves them to the operating system. In a commit:

1. data files were synced by the tasks that wrote them;
2. manifests, manifest lists and the names of all new files are synced here, before the catalog is asked;
3. the catalog commits: Iceberg writes the new metadata file and has the catalog name it;
4. that file is synced here, before anybody is told that the commit was made.

So what was reported survives a power cut, if the catalog's database does its part (SQLite and Postgres sync
their commits unless told otherwise). A kill of any process loses nothing at any point. A power cut between 3
and 4, which are milliseconds apart, may leave a catalog that names a metadata file without its content: no
such commit was reported or acknowledged, and the catalog has the name of the previous file. Between those two
steps Iceberg lets nobody in.

Files in remote stores are durable when they are closed; nothing is done about them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from penstock import durable

#: From a directory of files up to the warehouse: the table's, its namespace's, and `_penstock`.
_LEVELS = 4


def local_path(location: str) -> Path | None:
    """Where a location of Iceberg's is in this file system; None if it is in some store."""
    path = location.removeprefix("file:")
    return None if "://" in path else Path(path)


def sync_files(locations: Iterable[str]) -> None:
    """The content of files and of Hadoop's checksums beside them, and their names."""
    written = [path for path in map(local_path, locations) if path is not None]
    # What a REST server writes may lie where only it can look, and without checksums.
    beside = [path.with_name(f".{path.name}.crc") for path in written]
    paths = [path for path in (*written, *beside) if path.exists()]
    with durable.storage_errors("Could not write the table's metadata."):
        for path in paths:
            durable.sync_file(path)
        for directory in {path.parent for path in paths}:
            durable.sync_directory(directory)


def sync_names(directories: Iterable[Path]) -> None:
    """The names of files in these directories, and the directories' own."""
    found = {each for path in directories if path.is_dir() for each in (path, *path.parents[:_LEVELS])}
    with durable.storage_errors("Could not write the table's directories."):
        for directory in found:
            durable.sync_directory(directory)
