"""Files that survive a crash, and files that only one writer can create.

`replace` and `create_exclusively` return only when the content *and* the name are on disk: written
under a temporary name in the same directory, fsync, rename or link, fsync of the directory. A reader
sees the whole file or none. `create_exclusively` is the fence of every commit (correctness 16): of
two writers that want the same number, `link` lets exactly one through.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.core.errors import StorageError


def replace(path: Path, content: bytes, *, through: Path | None = None) -> None:
    """Put `content` at `path`, whatever stood there before.

    `through`: a directory to have the temporary file in; a FileNotFoundError if that is gone.
    """
    with _storage_errors(path):
        temporary = _write_temporary(path, content, through)
        os.replace(temporary, path)
        sync_directory(path.parent)


def create_exclusively(path: Path, content: bytes) -> bool:
    """Put `content` at `path` unless something stands there; False if it does."""
    with _storage_errors(path):
        temporary = _write_temporary(path, content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        sync_directory(path.parent)
        return True


def to_json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def sync_file(path: Path | str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path | str) -> None:
    sync_file(path)


def _write_temporary(path: Path, content: bytes, through: Path | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = (through or path.parent) / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    with storage_errors(f"Could not write {path.name} in {path.parent}."):
        yield


@contextmanager
def storage_errors(message: str) -> Iterator[None]:
    """Turn a failed write into an error that says what to do; nothing committed is harmed by it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free disk space and run the same command again; it goes on where it stopped."
            raise StorageError(f"{message} The disk is full.", remedy=remedy) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = "Give this user write permission there, or set another path in penstock.yaml."
            raise StorageError(f"{message} Permission is missing.", remedy=remedy) from error
        raise
