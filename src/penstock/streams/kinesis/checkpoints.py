"""What is written down of a lane's standing in a Kinesis stream: a file per term, in the state directory.

A term writes only its own file and reads the newest one there is. So a leader that was replaced and does not
know it yet harms nothing by a late checkpoint; it learns of the newer file before it writes its next one.

Names of events that were found beyond the standing go along from term to term, in a file beside it, until the
standing has passed them: the bounds of what is sent meanwhile may move past the places where they were found.

Epochs grow within one source only, so files are named by source and epoch. A source that has written nothing
yet gets the newest checkpoint of another one: its standing tells the lane that it cannot simply go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.errors import StaleTermError, StateError
from penstock.core.position import Lsn
from penstock.core.stream import escape_file_name
from penstock.streams.kinesis.bounds import Bound, Bounds
from penstock.streams.kinesis.found import Found
from penstock.streams.publisher import Standing

_FORMAT = 1
_FOUND = ".found"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`is_closed`: nothing was sent that is not behind the standing, and nothing more was to be sent.

    `written_at`: or earlier, when the oldest call was begun of which something is not behind the standing. An
    event may be held for longer than the stream keeps what went past it.
    """

    standing: Standing
    shards: Bounds
    written_at: float
    is_closed: bool = False
    has_found: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "standing": self.standing.to_json(),
            "written_at": self.written_at,
            "is_closed": self.is_closed,
            "has_found": self.has_found,
            "shards": {shard: bound.to_json() for shard, bound in self.shards.items()},
        }

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Checkpoint:
        shards = {shard: Bound.from_json(bound) for shard, bound in told["shards"].items()}
        return cls(
            Standing.from_json(told["standing"]),
            shards,
            told["written_at"],
            told["is_closed"],
            told["has_found"],
        )


class Checkpoints:
    """Of one lane in one stream."""

    def __init__(self, directory: Path, identity: str, stream: str, system_id: str) -> None:
        self._source = escape_file_name(system_id)
        self._directory = directory / "kinesis" / escape_file_name(identity) / escape_file_name(stream)

    def newest(self, epoch: Lsn, found: Found) -> Checkpoint | None:
        """`found` gets the names that go with it. A `StaleTermError` if a later term has written."""
        terms = sorted(self._terms())
        if not terms:
            others = sorted(self._files(), key=lambda file: file.stat().st_mtime_ns)
            return self._read(others[-1], None) if others else None
        self._check(terms[-1], epoch)
        return self._read(self._path(terms[-1]), found)

    def _read(self, path: Path, found: Found | None) -> Checkpoint:
        """`found` is None for another source, of which nothing can be there again."""
        try:
            told = json.loads(path.read_bytes())
            if told["format"] != _FORMAT:
                raise StateError(
                    f"{path.name} is of format {told['format']}, which this version does not know.",
                    remedy="Run the version of Penstock that wrote it, or a later one.",
                )
            checkpoint = Checkpoint.from_json(told)
            if found is not None and checkpoint.has_found:
                found.read_json(json.loads(path.with_suffix(_FOUND).read_bytes()))
            return checkpoint
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise StateError(
                f"{path.name} in {path.parent} cannot be read.",
                remedy="Restore it from a backup, or begin anew: `penstock resync --lane kinesis --yes`.",
            ) from error

    def write(self, checkpoint: Checkpoint, epoch: Lsn) -> None:
        """Durable when it returns. A `StaleTermError` if a later term has written."""
        for term in self._terms():
            self._check(term, epoch)
        durable.replace(self._path(epoch), durable.to_json_bytes(checkpoint.to_json()))

    def write_found(self, found: Found, epoch: Lsn) -> None:
        """Before a checkpoint that says it is there."""
        durable.replace(self._path(epoch).with_suffix(_FOUND), durable.to_json_bytes(found.to_json()))

    def forget_before(self, epoch: Lsn) -> None:
        """Once this term has written: earlier ones, and those of other sources."""
        later = {self._path(term) for term in self._terms() if term >= epoch}
        for path in [path for path in self._files() if path not in later]:
            path.unlink(missing_ok=True)
            path.with_suffix(_FOUND).unlink(missing_ok=True)

    def _terms(self) -> Iterator[Lsn]:
        """That have written for this source."""
        for path in self._files():
            source, _, epoch = path.stem.rpartition("-")
            if source == self._source:
                yield Lsn(int(epoch, 16))

    def _files(self) -> list[Path]:
        return [path for path in self._directory.glob("*.json") if not path.name.startswith(".")]

    def _path(self, epoch: Lsn) -> Path:
        return self._directory / f"{self._source}-{int(epoch):016x}.json"

    def _check(self, written: Lsn, epoch: Lsn) -> None:
        if written > epoch:
            raise StaleTermError(
                "A later leader writes to the Kinesis stream.",
                remedy="Nothing: this instance stands by from now on.",
            )
