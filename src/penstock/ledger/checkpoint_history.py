"""`checkpoint.history/`: the last checkpoints, each in a file of its own that is never written again.

A name says when it was saved, by which leader, and of which source: `<time>-<epoch>-<source>.json`; it is
the time alone if an older version wrote it. So the newest one is known without reading any, and it is the
newest leader's newest: clocks of two machines differ, and a leader that was stopped for an hour saves an hour
later than its successor. Epochs grow within one source only: what another source left comes before all of
ours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from penstock.core.position import Lsn
from penstock.core.stream import escape_file_name, unescape_file_name
from penstock.ledger.checkpoint_store import Store

LEFT_OVER_MAX = 1000  # old ones that are remembered while they cannot be removed
_NAME = re.compile(r"(\d+)(?:-([0-9a-f]{16})-(.*))?\.json")


@dataclass(frozen=True, slots=True)
class Leader:
    """Who saves: which source it reads, and since when, by a number that only grows there."""

    system_id: str
    epoch: Lsn

    def was_replaced_by(self, other: Leader) -> bool:
        return self.system_id == other.system_id and self.epoch < other.epoch


NOBODY = Leader("", Lsn(0))  # of an older version, which did not say


@dataclass(frozen=True, slots=True)
class Entry:
    leader: Leader
    saved_at_ns: int
    name: str

    @classmethod
    def new(cls, leader: Leader) -> Self:
        now = time.time_ns()
        source = escape_file_name(leader.system_id)
        return cls(leader, now, f"{now:020d}-{int(leader.epoch):016x}-{source}.json")

    @classmethod
    def named(cls, name: str) -> Self | None:
        """None if that is the name of something else."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        saved_at, epoch, source = found.groups()
        leader = NOBODY if epoch is None else Leader(unescape_file_name(source), Lsn(int(epoch, 16)))
        return cls(leader, int(saved_at), name)


class CheckpointHistory:
    """As `leader` sees it. The store is asked once what there is; `newest_first` asks anew."""

    def __init__(self, store: Store, directory: str, leader: Leader, kept: int) -> None:
        self._store = store
        self._directory = directory
        self._leader = leader
        self._kept = kept
        self._entries: list[Entry] | None = None

    def __len__(self) -> int:
        return len(self._entries or ())

    def newest_first(self) -> list[Entry]:
        return self._listed()[::-1]

    def read(self, entry: Entry) -> bytes:
        return self._store.read(f"{self._directory}/{entry.name}")

    def look(self) -> None:
        """Ask what there is, if that was not asked before."""
        if self._entries is None:
            self._entries = self._listed()

    def forget_later(self, on_failed: Callable[[str, Exception], None]) -> None:
        """Remove what is of a later leader than ours: for who leads still, after it has looked.

        Safe however late it is done: names never repeat, and none of a true successor can be among them.
        """
        entries = self._entries or []
        for entry in [each for each in entries if self._leader.was_replaced_by(each.leader)]:
            try:
                self._store.remove(f"{self._directory}/{entry.name}")
            except FileNotFoundError:
                pass
            except Exception as error:
                on_failed(entry.name, error)
                return
            entries.remove(entry)

    def add(self, content: bytes) -> None:
        self.look()
        assert self._entries is not None
        entry = Entry.new(self._leader)
        self._store.write(f"{self._directory}/{entry.name}", content)
        self._entries.append(entry)
        self._entries.sort(key=self._order)  # a successor's stay the newest, and are not removed

    def prune(self, on_failed: Callable[[str, Exception], None]) -> None:
        """What is left over because this failed goes the next time; of very much, with the next process:
        a store may let us write for years and never remove."""
        entries = self._entries or []
        try:
            while len(entries) > self._kept:
                self._store.remove(f"{self._directory}/{entries[0].name}")
                del entries[0]
        except FileNotFoundError:
            del entries[0]
        except Exception as error:
            on_failed(entries[0].name, error)
            del entries[: -self._kept - LEFT_OVER_MAX]

    def _listed(self) -> list[Entry]:
        found = map(Entry.named, self._store.names(self._directory))
        return sorted((entry for entry in found if entry is not None), key=self._order)

    def _order(self, entry: Entry) -> tuple[bool, int, int]:
        """Of another source only the time counts; who has no source takes what there is for its own."""
        is_ours = not self._leader.system_id or entry.leader.system_id == self._leader.system_id
        return is_ours, int(entry.leader.epoch) if is_ours else 0, entry.saved_at_ns
