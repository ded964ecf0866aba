"""Dead letters: events that a target will never take, kept whole and in order until somebody decides.

Nothing is lost: a letter is on disk before the position passes its event. Nothing is doubled: a letter counts
only if the target's standing has passed the batch that its event came in (`Standing.batches`). After a crash
between the two, the event comes again, so at `begin` such letters are taken back, and only remembered: should
the event come again, it is a dead letter again, without asking the target.

Order is kept per key: while a key has letters it is blocked, and its later events join them; nothing waits
in memory. Letters, blocked keys and the requests of people (`replays`) are handled by the one thread that
also decides over new events: that is the lock under which a key is drained and then unblocked.

Every write checks that the file is still this term's (`letter_owner`), and that the lane may go on: a target
that refuses many events is wrongly set up, and the lane stops rather than empty itself into this file.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, Self

import numpy as np

from penstock.core.errors import ConfigError, TooManyDeadLettersError
from penstock.core.stream import StreamId
from penstock.streams import letter_requests
from penstock.streams.blocked_keys import BEHIND, BEHIND_ANOTHER, BlockedKeys, Why
from penstock.streams.events import Events, Int64s
from penstock.streams.letter_file import LetterFile, dead_letters_path
from penstock.streams.letter_keys import LetterKeys
from penstock.streams.letter_names import LetterName, names_of
from penstock.streams.letter_owner import LetterOwner
from penstock.streams.load_state import LoadState
from penstock.streams.publisher import Standing, Term
from penstock.streams.replays import Replays, events_of

__all__ = ["Dead", "DeadLetterPolicy", "DeadLetters", "dead_letters_path"]

#: `max_share` is a share of so many events.
SHARE_OF = 10_000
_ROW_BYTES = 150  # of a letter in the file, beside its texts: numbers, and places in three indexes
_INSERT = (
    "INSERT OR IGNORE INTO letters (stream, chunk, tx, name, op, kind, xid, route, key, value, code, reason,"
    " attempts, at, batch, place, headers, source) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FORGET = "DELETE FROM known WHERE stream = ? AND chunk = ? AND tx = ? AND name = ?"
_KNOW = "INSERT OR REPLACE INTO known VALUES (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    order: Literal["block_key", "skip"] = "block_key"
    max_share: float = 0.01
    max_count: int = 100_000
    max_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class Dead:
    """Events that cannot be sent: which batch each came in, and where in it."""

    events: Events
    why: Sequence[Why]
    batches: Int64s
    places: Int64s


class DeadLetters:
    """For one thread after another, but for `counts` and `blocked_count`.

    `key_form` says in which form keys of a stream are written (`letter_keys`).
    """

    def __init__(
        self,
        path: Path,
        lane: str,
        policy: DeadLetterPolicy | None = None,
        key_form: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.lane = lane
        self._policy = policy or DeadLetterPolicy()
        self._file = LetterFile(path)
        self._owner = LetterOwner(self._file, lane)
        self._keys = LetterKeys(self._file, lane, key_form)
        self._known: dict[LetterName, Why] = {}
        self._known_streams: frozenset[str] = frozenset()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seen = 0
        self._recent: deque[tuple[int, int]] = deque()  # events seen, refused then
        self.blocked = BlockedKeys(keeps_order=self._policy.order == "block_key")
        self.replays = Replays(self._file, self.blocked, self._recount, self._owner.check)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def mark(self) -> str:
        """What a target that commits keeps with its standing: the file's id, or nothing while it is empty.

        Of letters that were taken back (`known`) a bucket of Kafka that is ahead may have passed the event;
        not so of loaded rows, which no bucket has before the others.
        """
        is_passed = any(not chunk for _, chunk, _, _ in self._known)
        return self._owner.file_id if self._counts.total() > 0 or is_passed else ""

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many, by stream and code."""
        return dict(self._counts)

    def begin(
        self,
        term: Term,
        standing: Standing | None,
        found: Callable[[Events], Sequence[bool]] | None = None,
    ) -> int:
        """A term begins, with what the target holds; the number of batches it has.

        `found`: of letters that were being replayed, which are at the target; without it, `Standing.replays`
        tells. A target that holds nothing of this lane makes no letter undone.
        """
        with self._file.transaction():
            if not self._owner.begin(term, standing):
                self._file.execute("DELETE FROM known")
            self._settle_replays(0 if standing is None else standing.replays, found)
            self._take_back(standing)
            newest: int = self._file.rows("SELECT coalesce(max(batch), 0) FROM letters")[0][0]
        self._remember()
        passed = newest if standing is None else standing.batches
        if self.blocked.keeps_order:
            self._check_keys(passed)
        return passed

    def _check_keys(self, passed: int) -> None:
        try:
            self._keys.check()
        except ConfigError:  # what nobody can set back is given up by order
            self.replays.drop(passed)
            self._keys.check()

    def follow(self, standing: Standing) -> None:
        """The lane goes on from there, as the target knows: whatever lies behind it comes again.

        So do the events of letters there, after a rewind: kept, they would stand before earlier events of
        their keys that join them now. Of a stream that loads, or is ahead of the lane, only what lies behind
        its own point comes. Letters of another source are no part of it.
        """
        behind = "source = ? AND chunk = '' AND tx >= ?"
        source = self._owner.source
        with self._file.transaction():
            self._owner.check()
            for (stream,) in self._file.rows(
                f"SELECT DISTINCT stream FROM letters WHERE {behind}", (source, int(standing.position))
            ):
                point = LoadState.from_json(standing.loads.get(stream, {})).point
                after = max(standing.position, point)
                self._file.execute(
                    f"DELETE FROM letters WHERE {behind} AND stream = ?", (source, int(after), stream)
                )
        self._remember()

    def know(self, refused: Mapping[LetterName, Why]) -> None:
        """The target has refused these, and they come again: then they are dead letters from the start."""
        with self._file.transaction():
            self._owner.check()
            self._file.execute_many(_KNOW, [(*name, *why) for name, why in refused.items()])

    def saw(self, count: int) -> None:
        """So many events are on their way: what `max_share` is a share of."""
        self._seen += count

    def concerns(self, events: Events) -> bool:
        """Whether `sift` need be asked at all."""
        return (
            bool(events.refused)
            or self.blocked.concerns(events.stream)
            or str(events.stream) in self._known_streams
        )

    def refused(self, events: Events) -> dict[int, Why]:
        """What of these is refused already: by the format, or by the target before they came again."""
        refused = {row: (code, reason, 0) for row, (code, reason) in events.refused.items()}
        if str(events.stream) in self._known_streams:
            refused |= self._known_of(events)
        return refused

    def sift(self, events: Events) -> dict[int, Why]:
        """What of these must not be sent, in their order; what is behind it in its key joins it."""
        if not self.concerns(events):
            return {}
        refused = self.refused(events)
        behind = self.blocked.rows(events).tolist()
        fallen = {row: refused.pop(row, BEHIND_ANOTHER) for row in behind}
        if refused:
            fallen |= self.blocked.fall(events, refused)
        return dict(sorted(fallen.items()))

    def write(self, dead: Sequence[Dead]) -> None:
        """Durable when it returns; what is there already stays as it is."""
        refused = sum(map(self._refused_anew, dead))
        again = [name for each in dead for name in self._known_among(each.events)]
        written: Counter[tuple[str, str]] = Counter()
        with self._file.transaction():
            self._owner.check()
            recent = self._checked_share(refused)
            found = self._rows_by_code(dead)
            self._check_bytes(sum(map(_room_of, chain.from_iterable(found.values()))))
            for (stream, code), rows in found.items():
                written[stream, code] += self._file.execute_many(_INSERT, rows)
            self._file.execute_many(_FORGET, again)  # they are letters now
            self._keys.note({str(each.events.stream) for each in dead})
            self._check_count(written)
            self._file.set_fact("recent", json.dumps({"seen": self._seen, "refused": list(recent)}))
        self._recent = recent
        self._counts.update(written)
        for name in again:
            self._known.pop(name, None)

    def _rows_by_code(self, dead: Sequence[Dead]) -> Mapping[tuple[str, str], list[tuple[object, ...]]]:
        """By stream and code: a commit may have a letter of each of many batches."""
        at, found = letter_requests.now(), defaultdict[tuple[str, str], list[tuple[object, ...]]](list)
        for each in dead:
            for why, row in zip(each.why, _rows_of(each, at, self._owner.source), strict=True):
                found[str(each.events.stream), why[0]].append(row)
        return found

    def _known_among(self, events: Events) -> list[LetterName]:
        if not self._known:
            return []
        names = names_of(events)
        found = (names.name(row) for row in range(len(events)))
        return [name for name in found if name in self._known]

    def _refused_anew(self, dead: Dead) -> int:
        """How many of these were refused now: not those behind others, nor those that came again."""
        refused = [row for row, why in enumerate(dead.why) if why[0] != BEHIND]
        if not refused or not self._known:
            return len(refused)
        names = names_of(dead.events)
        return sum(names.name(row) not in self._known for row in refused)

    def _checked_share(self, refused: int) -> deque[tuple[int, int]]:
        recent = deque(each for each in self._recent if each[0] > self._seen - SHARE_OF)
        if refused:
            recent.append((self._seen, refused))
        if sum(count for _, count in recent) > self._policy.max_share * SHARE_OF:
            raise TooManyDeadLettersError(
                f"The target refused more than {self._policy.max_share:.2%} of the last {SHARE_OF:,} events "
                f"of lane {self.lane}.",
                remedy=f"`penstock dlq list --lane {self.lane}` says why. Put the target right, or raise "
                f"`lanes.{self.lane}.dead_letter.max_share`, then start the lane again; nothing is lost.",
            )
        return recent

    def _check_bytes(self, more: int) -> None:
        if self._file.bytes + more > self._policy.max_bytes:
            raise TooManyDeadLettersError(
                f"Lane {self.lane} would have more than {self._policy.max_bytes:,} bytes of dead letters.",
                detail="Later events of a key that has one join them.",
                remedy=f"`penstock dlq list --lane {self.lane}` says why. Replay or drop some, or raise "
                f"`lanes.{self.lane}.dead_letter.max_bytes`, then start the lane again; nothing is lost.",
            )

    def _check_count(self, written: Mapping[tuple[str, str], int]) -> None:
        """How many were refused: what joined them has the limit of bytes."""
        counts = (*self._counts.items(), *written.items())
        if sum(count for (_, code), count in counts if code != BEHIND) > self._policy.max_count:
            raise TooManyDeadLettersError(
                f"Lane {self.lane} would have more than {self._policy.max_count:,} dead letters.",
                remedy=f"`penstock dlq list --lane {self.lane}` says why. Replay or drop some, or raise "
                f"`lanes.{self.lane}.dead_letter.max_count`, then start the lane again; nothing is lost.",
            )

    def _settle_replays(self, replays: int, found: Callable[[Events], Sequence[bool]] | None) -> None:
        """Part of the caller's transaction: letters that were replayed are gone, others are not replayed."""
        if found is None:
            self._file.execute("DELETE FROM letters WHERE replay BETWEEN 1 AND ?", (replays,))
        else:
            letters = self._file.letters("replay > 0 ORDER BY stream, batch, place")
            for events, numbers in events_of(letters):
                there = [
                    (number,) for number, is_there in zip(numbers, found(events), strict=True) if is_there
                ]
                self._file.execute_many("DELETE FROM letters WHERE number = ?", there)
        self._file.execute("UPDATE letters SET replay = 0 WHERE replay > 0")

    def _take_back(self, standing: Standing | None) -> None:
        """Part of the caller's transaction: the events of these letters come again."""
        if standing is None:
            self._file.execute("DELETE FROM known")
            return
        taken_back = (
            "INSERT OR REPLACE INTO known SELECT stream, chunk, tx, name, code, reason, attempts "
            "FROM letters WHERE batch > ? AND code <> ?"
        )
        self._file.execute(taken_back, (standing.batches, BEHIND))
        self._file.execute("DELETE FROM letters WHERE batch > ?", (standing.batches,))
        self._file.execute("DELETE FROM known WHERE tx BETWEEN 1 AND ?", (int(standing.position) - 1,))
        for stream, chunk in self._file.rows("SELECT DISTINCT stream, chunk FROM known WHERE chunk <> ''"):
            if LoadState.from_json(standing.loads.get(stream, {})).name != chunk:  # read anew, or done
                self._file.execute("DELETE FROM known WHERE stream = ? AND chunk = ?", (stream, chunk))

    def _remember(self) -> None:
        query = "SELECT stream, code, count(*) FROM letters GROUP BY stream, code"
        self._counts = Counter({(stream, code): count for stream, code, count in self._file.rows(query)})
        self.blocked.clear()
        for stream, key in self._file.rows("SELECT DISTINCT stream, key FROM letters WHERE key IS NOT NULL"):
            self.blocked.block(StreamId.parse(stream), [key])
        query = "SELECT stream, chunk, tx, name, code, reason, attempts FROM known"
        self._known = {(s, c, tx, name): (*why,) for s, c, tx, name, *why in self._file.rows(query)}
        self._known_streams = frozenset(name[0] for name in self._known)
        recent = json.loads(self._file.fact("recent", '{"seen": 0, "refused": []}'))
        self._seen = recent["seen"]
        self._recent = deque((seen, count) for seen, count in recent["refused"])

    def _known_of(self, events: Events) -> dict[int, Why]:
        transactions = np.array([name[2] for name in self._known], np.int64)
        names, known = names_of(events), {}
        for row in np.flatnonzero(np.isin(events.tx, transactions)).tolist():
            if (why := self._known.get(names.name(row))) is not None:
                known[row] = why
        return known

    def _recount(self, stream: str, code: str, change: int) -> None:
        self._counts[stream, code] += change


def _rows_of(dead: Dead, at: str, source: str) -> Iterator[tuple[object, ...]]:
    events, names = dead.events, names_of(dead.events)
    for row, (code, reason, attempts) in enumerate(dead.why):
        yield (
            *names.name(row),
            int(events.op[row]),
            int(events.kind[row]),
            int(events.xid[row]),
            events.route,
            events.key[row].as_py(),
            events.value[row].as_py(),
            code,
            reason,
            attempts,
            at,
            int(dead.batches[row]),
            int(dead.places[row]),
            _headers(events, row),
            source,
        )


def _room_of(row: tuple[object, ...]) -> int:
    return _ROW_BYTES + sum(len(value) for value in row if isinstance(value, (str, bytes)))


def _headers(events: Events, row: int) -> str:
    values = {name: column[row].as_py() for name, column in events.headers.items()}
    return json.dumps({name: value for name, value in values.items() if value is not None})
