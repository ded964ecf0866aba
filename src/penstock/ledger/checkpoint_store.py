"""Where checkpoints lie: a directory, or a prefix in an object store (`s3://`, `gs://`).

`write` returns once the content is durable, and a reader sees the whole of it or what was there before: by
a rename in a directory, by the store itself for an object. No call lasts longer than `CALL_TIMEOUT_S`:
Arrow's client waits without end for a store that took the connection and says nothing, so each call runs in a
thread that is left behind if it does not come back. No more than `LEFT_BEHIND_MAX` of those are waited for.
While an earlier write of a name is out, the next one is refused: the earlier might land later.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

from penstock import durable
from penstock.ledger.leader_files import LeaderFiles

CALL_TIMEOUT_S = 10.0
LEFT_BEHIND_MAX = 4

_writes_out: set[str] = set()  # of all stores of this process
_lock = threading.Lock()
_Result = TypeVar("_Result")
#: What the client is told beside what the address says: small objects in one request; an end to trying.
_PARAMETERS = {"s3": {"allow_delayed_open": "true"}, "gs": {"retry_limit_seconds": "5"}}
_SCHEME_OF_ENDPOINT = re.compile(r"\bendpoint_override=(https?)(?:://|%3a%2f%2f)", re.IGNORECASE)


class Store(Protocol):
    """Names are relative, with `/` between directories. A missing one is a `FileNotFoundError`."""

    def read(self, name: str) -> bytes: ...
    def write(self, name: str, content: bytes) -> None: ...
    def remove(self, name: str) -> None: ...
    def names(self, directory: str) -> list[str]: ...


def open_store(path: str | Path, may_write: Callable[[], None] | None = None) -> tuple[Store, str]:
    """Where the file at `path` lies, and its name there. Nothing is asked of a store before it is used.

    `may_write` raises where a leader's lease is over: in a directory nothing is written late then.
    """
    if isinstance(path, str) and "://" in path:
        address = urlsplit(path)
        directory, _, name = address.path.strip("/").rpartition("/")
        return ObjectStore(address._replace(path=f"/{directory}").geturl()), name
    place = Path(path)
    leaders = None if may_write is None else LeaderFiles(place.with_suffix(".leaders"), may_write)
    return Directory(place.parent, leaders), place.name


class Directory:
    def __init__(self, path: Path, leaders: LeaderFiles | None = None) -> None:
        self._path = path
        self._leaders = leaders

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        replace_file = durable.replace if self._leaders is None else self._leaders.replace
        replace_file(self._path / name, content)

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def names(self, directory: str) -> list[str]:
        return [path.name for path in (self._path / directory).glob("*")]


class ObjectStore:
    """Credentials are found where the store's own tools find them; `?region=`, `?endpoint_override=` and what
    else Arrow takes may follow the address."""

    def __init__(self, address: str, call_timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._address = _for_arrow(address)
        self._timeout_s = call_timeout_s
        self._left_behind = 0
        self._opened: tuple[Any, str] | None = None

    def read(self, name: str) -> bytes:
        def read() -> bytes:
            files, place = self._at(name)
            with files.open_input_stream(place) as stream:
                return bytes(stream.read())

        return self._within_time(read)

    def write(self, name: str, content: bytes) -> None:
        def write() -> None:
            files, place = self._at(name)
            with files.open_output_stream(place) as stream:
                stream.write(content)

        self._within_time(write, writes=f"{self._address}/{name}")

    def remove(self, name: str) -> None:
        def remove() -> None:
            files, place = self._at(name)
            files.delete_file(place)

        self._within_time(remove)

    def names(self, directory: str) -> list[str]:
        from pyarrow.fs import FileSelector

        def names() -> list[str]:
            files, place = self._at(directory)
            found = files.get_file_info(FileSelector(place, allow_not_found=True))
            return [each.base_name for each in found]

        return self._within_time(names)

    def _at(self, name: str) -> tuple[Any, str]:
        from pyarrow.fs import FileSystem

        if self._opened is None:  # asks the store for the bucket's region
            self._opened = FileSystem.from_uri(self._address)
        files, base = self._opened
        return files, f"{base.rstrip('/')}/{name}"

    def _within_time(self, call: Callable[[], _Result], writes: str | None = None) -> _Result:
        with _lock:
            if self._left_behind >= LEFT_BEHIND_MAX:
                raise TimeoutError("The store does not answer.")
            if writes in _writes_out:
                raise TimeoutError("The store has not answered an earlier write of the same name.")
            self._left_behind += 1
            if writes is not None:
                _writes_out.add(writes)
        results: list[_Result] = []
        errors: list[Exception] = []

        def carry_out() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)
            finally:
                with _lock:
                    self._left_behind -= 1
                    if writes is not None:
                        _writes_out.discard(writes)

        thread = threading.Thread(target=carry_out, name="checkpoint-store", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"The store did not answer within {self._timeout_s:g} s.")
        return results[0]


def _for_arrow(address: str) -> str:
    """With what the client is told besides; Google's wants the scheme of another endpoint on its own."""
    parts = urlsplit(address)
    query = "&".join(filter(None, (parts.query, urlencode(_PARAMETERS.get(parts.scheme, {})))))
    if parts.scheme == "gs":
        query = _SCHEME_OF_ENDPOINT.sub(r"scheme=\1&endpoint_override=", query)
    return parts._replace(query=query).geturl()
