"""Dead letters on their way again, or given up, as people asked.

A replay takes the letters of a key from the first on, a portion at a time, until the key has none; with the
last one the key is unblocked. All that is done by the thread that decides over new events, so an event of the
key either joined the letters before, and was replayed behind them, or comes after the key was unblocked, and
goes behind all of them.

A portion is sent once, although the target and this file are two: its letters are marked with the replay's
number first. A target that commits takes that number with its standing, so after a crash the standing tells
whether the letters are there; one that does not is read back for them.

Which keys a replay drains is noted when it begins, and holds until it has ended.

A letter that is refused again stays, with all behind it in its key. What the format could not say cannot be
sent by anybody: such letters can only be dropped.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from penstock.core.stream import StreamId
from penstock.streams import letter_requests
from penstock.streams.blocked_keys import BlockedKeys, Why
from penstock.streams.events import Events
from penstock.streams.letter_file import Letter, LetterFile
from penstock.streams.letter_requests import Key, Request

UNENCODABLE = "unencodable"
_LETTERS_MAX = 1000
_BYTES_MAX = 4 * 1024 * 1024
_DROPPED_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Portion:
    """Letters to be sent now, marked with `replay`."""

    request: int
    replay: int
    letters: Sequence[Letter]

    def parts(self) -> Iterator[tuple[Events, list[int]]]:
        """The events, and the numbers of their letters."""
        return events_of(self.letters)


@dataclass(slots=True)
class _Run:
    """A request that is being worked on: keys to be drained, and letters without an order."""

    request: Request
    keys: deque[Key] = field(default_factory=deque)
    loose: deque[int] = field(default_factory=deque)


class Replays:
    """`recount` is told of letters that come and go; `check_term` fails if a later term has begun."""

    def __init__(
        self,
        file: LetterFile,
        blocked: BlockedKeys,
        recount: Callable[[str, str, int], None],
        check_term: Callable[[], None],
    ) -> None:
        self._file = file
        self._blocked = blocked
        self._recount = recount
        self._check_term = check_term
        self._run: _Run | None = None

    def next(self, passed: int, replay: int) -> Portion | None:
        """What is to be sent now, as replay number `replay`; drops are done on the way.

        Letters of batches after `passed` are left alone: their events might come again.
        """
        for request in letter_requests.waiting(self._file):
            if request.action == "drop":
                self._drop(request, passed)
                continue
            if self._run is None or self._run.request.number != request.number:
                self._run = self._begun(request)
            if letters := self._chosen(self._run, passed):
                with self._file.transaction():
                    self._check_term()
                    marks = [(replay, letter.number) for letter in letters]
                    self._file.execute_many("UPDATE letters SET replay = ? WHERE number = ?", marks)
                return Portion(request.number, replay, letters)
            if not self._run.keys and not self._run.loose:
                letter_requests.finish(self._file, request.number)
                self._run = None
        return None

    def drop(self, passed: int) -> None:
        """Carry out all drops that were asked for, as `next` does."""
        for request in letter_requests.waiting(self._file):
            if request.action == "drop":
                self._drop(request, passed)

    def keep(self, portion: Portion, refused: Mapping[int, Why]) -> Portion:
        """The portion without letters that were refused again, and those behind them in their keys."""
        held: set[Key] = set()
        staying, going = [], []
        for letter in portion.letters:
            key = self._ordered_key(letter.stream, letter.key)
            if letter.number in refused or key in held:
                staying.append(letter)
                if key is not None:
                    held.add(key)
            else:
                going.append(letter)
        if self._run is not None:
            self._run.keys = deque(key for key in self._run.keys if key not in held)
        with self._file.transaction():
            self._check_term()
            for letter in staying:
                code, reason, attempts = refused.get(letter.number, (letter.code, letter.reason, 0))
                self._file.execute(
                    "UPDATE letters SET replay = 0, code = ?, reason = ?, attempts = attempts + ? "
                    "WHERE number = ?",
                    (code, reason, attempts, letter.number),
                )
                self._recount(letter.stream, letter.code, -1)
                self._recount(letter.stream, code, 1)
            letter_requests.count(self._file, portion.request, 0, len(staying))
        return replace(portion, letters=going)

    def done(self, portion: Portion) -> None:
        """The letters are at the target: they are gone from here, and keys without any are free."""
        self._remove(
            [(each.number, each.stream, each.key, each.code) for each in portion.letters], portion.request
        )

    def _begun(self, request: Request) -> _Run:
        run = _Run(request)
        condition, parameters = _wanted(request)
        loose = f"SELECT number FROM letters WHERE {condition}"
        if self._blocked.keeps_order:
            run.keys.extend(self._keys_of(request))
            loose += " AND key IS NULL"
        run.loose.extend(number for (number,) in self._file.rows(f"{loose} ORDER BY number", parameters))
        return run

    def _keys_of(self, request: Request) -> list[Key]:
        """Noted when it begins, for a replay that goes on after a crash, or after another one.

        By then all letters of a key that were asked for may have gone, while later ones have joined them:
        nothing else tells that these are to go too.
        """
        keys = letter_requests.noted_keys(self._file, request.number)
        if keys is None:
            condition, parameters = _wanted(request)
            query = f"SELECT DISTINCT stream, key FROM letters WHERE {condition} AND key IS NOT NULL"
            keys = sorted(self._file.rows(query, parameters))
            with self._file.transaction():
                self._check_term()
                letter_requests.note_keys(self._file, request.number, keys)
        return keys

    def _chosen(self, run: _Run, passed: int) -> list[Letter]:
        """The next letters, as many as go at once; none: the run waits for its last batches, or is done."""
        chosen: list[Letter] = []
        room = _BYTES_MAX
        for _ in range(len(run.keys)):
            if len(chosen) >= _LETTERS_MAX or room <= 0:
                return chosen
            stream, key = run.keys.popleft()
            # What they are comes first, without their contents: a key may have far more than there is room.
            first = "stream = ? AND key = ? ORDER BY batch, place LIMIT ?"
            what = "SELECT batch, code, length(key) + coalesce(length(value), 0) FROM letters WHERE"
            waiting = self._file.rows(f"{what} {first}", (stream, key, _LETTERS_MAX - len(chosen)))
            if waiting and waiting[0][1] == UNENCODABLE:
                self._count_kept(run.request)
                continue
            if waiting:
                run.keys.append((stream, key))
            taken = 0
            for batch, code, size in waiting:
                if batch > passed or code == UNENCODABLE or room <= 0:
                    break
                taken += 1
                room -= size
            chosen += self._file.letters(first, (stream, key, taken))
        while run.loose and len(chosen) < _LETTERS_MAX and room > 0:
            number = run.loose.popleft()
            for letter in self._file.letters("number = ?", (number,)):
                if letter.batch > passed:
                    run.loose.appendleft(number)
                    return chosen
                if letter.code == UNENCODABLE:
                    self._count_kept(run.request)
                else:
                    chosen.append(letter)
                    room -= letter.bytes
        return chosen

    def _drop(self, request: Request, passed: int) -> None:
        condition, parameters = _wanted(request)
        query = f"SELECT number, stream, key, code FROM letters WHERE {condition} AND batch "
        at_once = (*parameters, passed, _DROPPED_AT_ONCE)
        while letters := self._file.rows(query + "<= ? LIMIT ?", at_once):
            self._remove(letters, request.number)
        if not self._file.rows(query + "> ? LIMIT 1", (*parameters, passed)):
            letter_requests.finish(self._file, request.number)

    def _remove(self, letters: Sequence[tuple[int, str, bytes | None, str]], request: int) -> None:
        if not letters:
            return
        with self._file.transaction():
            self._check_term()
            numbers = ((number,) for number, *_ in letters)
            self._file.execute_many("DELETE FROM letters WHERE number = ?", numbers)
            letter_requests.count(self._file, request, len(letters), 0)
            free = [
                (stream, key)
                for stream, key in {(stream, key) for _, stream, key, _ in letters}
                if key is not None and not self._has_letters(stream, key)
            ]
        for _, stream, _, code in letters:
            self._recount(stream, code, -1)
        for stream, key in free:
            self._blocked.unblock(StreamId.parse(stream), key)

    def _has_letters(self, stream: str, key: bytes) -> bool:
        return bool(
            self._file.rows("SELECT 1 FROM letters WHERE stream = ? AND key = ? LIMIT 1", (stream, key))
        )

    def _count_kept(self, request: Request) -> None:
        with self._file.transaction():
            letter_requests.count(self._file, request.number, 0, 1)

    def _ordered_key(self, stream: str, key: bytes | None) -> Key | None:
        return None if key is None or not self._blocked.keeps_order else (stream, key)


def _wanted(request: Request) -> tuple[str, tuple[object, ...]]:
    if request.letter is not None:
        return "number = ?", (request.letter,)
    if request.stream is not None:
        return "stream = ? AND number <= ?", (request.stream, request.up_to)
    return "number <= ?", (request.up_to,)


def events_of(letters: Sequence[Letter]) -> Iterator[tuple[Events, list[int]]]:
    """Letters as events, in their order, with their numbers."""
    for (stream, route, chunk), group in groupby(letters, lambda each: (each.stream, each.route, each.chunk)):
        of = list(group)
        events = Events(
            StreamId.parse(stream),
            route,
            np.array([letter.tx for letter in of], np.int64),
            np.array([letter.op for letter in of], np.int64),
            np.array([letter.kind for letter in of], np.uint8),
            np.array([letter.xid for letter in of], np.int64),
            pa.array([letter.key for letter in of], pa.binary()),
            pa.array([letter.value for letter in of], pa.binary()),
            chunk,
            headers=_headers([json.loads(letter.headers) for letter in of]),
        )
        yield events, [letter.number for letter in of]


def _headers(rows: Sequence[Mapping[str, str]]) -> dict[str, pa.StringArray]:
    names = sorted({name for row in rows for name in row})
    return {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}
