"""The file target: each event a line of JSON, and after each commit a line that says how far the file is.

    {"route": …, "offset": "<tx>_<op>", "kind": "c", "key": […], "value": {…}}      an event
    {"commit": {"position": …, "epoch": …, …}}                                      all above is committed

A loaded row has its load's `chunk` before its offset, which counts rows there.

Why everything is in it once: events and the standing are lines of one file, and lines behind the last commit
line count for nothing. A reader keeps lines until their commit line comes; whoever opens the file to write
cuts them off first. So a commit is there when its last line is, durably, and whether one whose writer died
has happened is seen by looking. An earlier term is shut out by the commit line that `open` writes: before
its next line it looks, under the file's lock, whether the file ends where it left it.

This is all that a target is: docs/guides/streams-target.md goes through it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock import durable, failpoints
from penstock.core.errors import StaleTermError, TargetError
from penstock.streams.events import MESSAGE, Events
from penstock.streams.publisher import Standing, Term

_COMMIT = b'{"commit": '
_LOOK_BACK_BYTES = 1 << 16
_COPY_BYTES = 1 << 20


class FileTarget:
    """Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._end = 0  # of what is committed
        self._is_open = False  # whether something is written behind it, and the lock held

    def open(self, term: Term) -> Standing | None:
        self.close()
        with _told(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            durable.sync_directory(self._path.parent)
            self._lock()
            try:
                self._end, standing = _last_commit(self._file)
                if standing is not None and standing.epoch > term.epoch and _is_same_source(standing, term):
                    raise _stale()
                os.ftruncate(self._file, self._end)
                if standing is not None and standing.epoch != term.epoch:
                    self._append(replace(standing, epoch=term.epoch))
            finally:
                self._unlock()
        return standing

    def write(self, events: Events) -> None:
        with _told(self._path):
            self._begin()
            _write_all(self._descriptor, lines_of(events))

    def commit(self, standing: Standing) -> None:
        with _told(self._path):
            self._begin()
            self._append(standing)
            self._unlock()
        failpoints.reach("streams.file_committed")

    def abort(self) -> None:
        if self._is_open:
            with _told(self._path):
                os.ftruncate(self._descriptor, self._end)
                self._unlock()

    def stop(self) -> None:
        """Nobody waits here."""

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)  # and with it the lock
            self._file, self._is_open = None, False

    @property
    def _descriptor(self) -> int:
        assert self._file is not None, "a target is opened before it is written to"
        return self._file

    def _begin(self) -> None:
        """Write behind what is committed, unless somebody else has."""
        if self._is_open:
            return
        self._lock()
        if os.fstat(self._descriptor).st_size != self._end or not _is_same(self._path, self._descriptor):
            self._unlock()
            raise _stale()
        os.lseek(self._descriptor, self._end, os.SEEK_SET)

    def _append(self, standing: Standing) -> None:
        os.lseek(self._descriptor, 0, os.SEEK_END)
        _write_all(self._descriptor, _COMMIT + json.dumps(standing.to_json()).encode() + b"}\n")
        failpoints.reach("streams.file_written")
        os.fsync(self._descriptor)
        self._end = os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def _lock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._is_open = True

    def _unlock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._is_open = False


def lines_of(events: Events) -> pa.Buffer | bytes:
    """All lines of some events, made in columns."""
    if not len(events):
        return b""
    key, value = events.key, events.value
    if (events.kind == MESSAGE).any():  # few, and of any bytes
        key, value = (pa.array(map(_as_json, column.to_pylist()), pa.binary()) for column in (key, value))
    else:
        for end in (b"\n", b"\r"):  # of lines, in documents that are embedded as the source has them
            value = pc.replace_substring(value, pattern=end, replacement=b" ")
    loaded = {"chunk": events.chunk} if events.chunk else {}
    head = json.dumps({"route": events.route, **loaded})[:-1].encode() + b', "offset": "'
    kind = pa.array(events.kind.view("S1"), pa.binary())
    parts = (
        *(head, _digits(events.tx), b"_", _digits(events.op), b'", "kind": "', kind, b'", "key": '),
        *(_or_null(key), b', "value": ', _or_null(value), b"}\n"),
    )
    scalars = [pa.scalar(part, pa.large_binary()) if isinstance(part, bytes) else part for part in parts]
    columns = [part if isinstance(part, pa.Scalar) else part.cast(pa.large_binary()) for part in scalars]
    lines = pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))
    _, offsets, text = lines.buffers()
    ends = memoryview(offsets).cast("q")
    return text.slice(ends[lines.offset], ends[lines.offset + len(lines)] - ends[lines.offset])


def committed_lines(path: Path) -> Iterator[dict[str, Any]]:
    """What a reader sees: events, each once it is committed."""
    waiting: list[bytes] = []
    with open(path, "rb") as file:
        for line in file:
            if line.startswith(_COMMIT) and line.endswith(b"\n"):
                yield from map(json.loads, waiting)
                waiting.clear()
            else:
                waiting.append(line)


def _digits(numbers: Any) -> pa.Array:
    return pa.array(numbers).cast(pa.string()).cast(pa.binary())


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, b"null")


def _as_json(content: bytes | None) -> bytes | None:
    """What is JSON as it is, other text as a string, and any other bytes by their digits."""
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(content).decode()}).encode()
    try:
        json.loads(text, parse_constant=_refused_constant)
    except ValueError:
        return json.dumps(text).encode()
    return text.replace("\n", " ").replace("\r", " ").encode()  # with every digit that it has


def _refused_constant(_name: str) -> None:
    raise ValueError("NaN and Infinity are no JSON")


def _last_commit(file: int) -> tuple[int, Standing | None]:
    """Where the last commit line ends, and what it says. Looked for from the end: the file may be large."""
    begins = b"\n" + _COMMIT
    stop = os.fstat(file).st_size
    while stop > 0:
        start = max(0, stop - _LOOK_BACK_BYTES)
        text = os.pread(file, stop - start + len(begins), start)
        if start == 0:
            text = b"\n" + text
        while (at := text.rfind(begins)) >= 0:
            line_at = start + at + (start > 0)
            line = _line(file, line_at)
            if line.endswith(b"\n"):
                return line_at + len(line), Standing.from_json(json.loads(line)["commit"])
            text = text[:at]
        stop = start
    return 0, None


def _line(file: int, at: int) -> bytes:
    text = b""
    while b"\n" not in text and (more := os.pread(file, _LOOK_BACK_BYTES, at + len(text))):
        text += more
    return text[: text.find(b"\n") + 1]


def _is_same_source(standing: Standing, term: Term) -> bool:
    """Epochs are positions of one server's log: those of two cannot be compared."""
    return standing.system_id == term.system_id


def _is_same(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _write_all(file: int, content: pa.Buffer | bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view[:_COPY_BYTES]) :]


def _stale() -> StaleTermError:
    return StaleTermError(
        "Another instance has written to the lane's file since, or it was replaced.",
        remedy="None needed: whoever leads goes on from what the file holds.",
    )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise TargetError(
            f"Another process is writing to {path}.",
            remedy="It is tried again; end that process if it hangs.",
        ) from error
    except OSError as error:
        raise TargetError(
            f"The file {path} cannot be written: {error.strerror}.",
            remedy="Make room, or let Penstock write there; it is tried again.",
        ) from error
