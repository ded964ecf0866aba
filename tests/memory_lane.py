"""A lane of loads and changes whose target is memory, and which a test may kill at any batch.

What the target holds survives; all else of a life is gone: batches that were not committed, the snapshot, and
what was read ahead. Commits take a few batches at a time, never part of one that is not `is_last`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import Started
from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import ChangeRows
from penstock.core.position import Lsn
from penstock.core.selection import Selection
from penstock.core.stream import StreamId
from penstock.metrics import Sample
from penstock.sources.postgres.catalog import discover
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.source import PostgresSource
from penstock.streams.encoding.encoder import EncodingSettings, encoder
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import Batch, Events
from penstock.streams.loading import Loads, LoadSettings, least_point
from penstock.streams.publisher import Publisher, Standing, Term
from penstock.streams.selection import StreamSelection
from penstock.streams.tail_feed import TailFeed
from penstock.streams.trouble import Trouble
from tests.stream_reader import Told, read_events


class KilledError(Exception):
    """A life of the lane is over."""


class MemoryPublisher(Publisher):
    """`kill_at`: the batch, counted from now, with which this life ends; it may be committed or not."""

    def __init__(self, seed: int = 0) -> None:
        self.committed: list[Events] = []
        self.kill_at: int | None = None
        self._standing: Standing | None = None
        self._open: list[Batch] = []
        self._random = random.Random(seed)

    @property
    def trouble(self) -> Trouble | None:
        return None

    def open(self, term: Term) -> Standing | None:
        self._open = []
        return self._standing

    def begin(self, standing: Standing) -> None:
        self._standing = standing

    def publish(self, batch: Batch) -> None:
        self._open.append(batch)
        if batch.is_last and self._random.random() < 0.7:
            self._commit()
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at <= 0:
                self.kill_at = None
                raise KilledError

    @property
    def standing(self) -> Standing:
        assert self._standing is not None
        return self._standing

    def drain(self, within_s: float) -> bool:
        if self._open and self._open[-1].is_last:
            self._commit()
        return not self._open

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass

    def samples(self) -> list[Sample]:
        return []

    def told(self) -> list[Told]:
        return read_events(
            pair
            for events in self.committed
            for pair in zip(events.key.to_pylist(), events.value.to_pylist(), strict=True)
        )

    def chunks(self, stream: str) -> set[str]:
        """The loads that rows of a stream were told in."""
        return {events.chunk for events in self.committed if str(events.stream) == stream and events.chunk}

    def _commit(self) -> None:
        standing = self.standing
        for batch in self._open:
            assert batch.end >= standing.position, "positions go forward"
            loads = standing.loads if batch.loads is None else batch.loads
            standing = replace(standing, position=batch.end, loads=loads)
            self.committed += batch.events
        self._standing, self._open = standing, []


def load_settings(url: str, **settings: Any) -> LoadSettings:
    source = PostgresSource(url, None, "penstock", "penstock", "auto")
    return LoadSettings(source, source.reading(), **settings)


class MemoryLane:
    """One life after the other on the same target."""

    def __init__(
        self,
        url: str,
        log_directory: Path,
        publisher: MemoryPublisher,
        selections: Mapping[str, Selection] | None = None,
        **settings: Any,
    ) -> None:
        self.publisher = publisher
        self._url = url
        self._log = log_directory
        self._selections = {StreamId.parse(name): each for name, each in (selections or {}).items()}
        usual = {"connections": 3, "rows_per_chunk": 100, "batch_bytes": 64 << 10, "ahead_bytes": 512 << 10}
        self.settings = load_settings(url, **(usual | settings))
        self.loads: Loads | None = None
        self.read_anew = 0

    def live(
        self,
        capture: RemoteCapture,
        started: Started,
        streams: Collection[str],
        until: Callable[[Loads, Standing], bool],
        on_batch: Callable[[Batch], None] = lambda _batch: None,
    ) -> None:
        """Until a condition holds with everything committed, or it is killed."""
        named = [StreamId.parse(stream) for stream in streams]
        selections = {stream: self._selections.get(stream, Selection()) for stream in named}
        publisher = self.publisher
        found = publisher.open(Term("memory", started.epoch, started.system_id, started.timeline))
        with ExitStack() as opened:
            encode = self._encoding(selections)
            loads = self.loads = Loads(
                capture, self._log, self.settings, selections, encode, lambda: publisher.standing.loads
            )
            opened.callback(loads.close)
            opened.callback(self._count, loads)
            end = loads.begin(
                named, {} if found is None else found.loads, None if found is None else found.position
            )
            publisher.begin(Standing(end, started.epoch, started.system_id, started.timeline, loads.state))
            feed = opened.enter_context(TailFeed(TailReader(capture, self._log, named), end))
            while True:
                fragment = feed.next(0.01)
                is_whole = True
                if fragment is not None:
                    kept = [each for each in map(loads.keep, fragment.changes) if each is not None]
                    batch = Batch(
                        fragment.end, [made for each in kept for made in encode(each)], fragment.is_last
                    )
                    publisher.publish(batch)
                    end, is_whole = fragment.end, fragment.is_last
                if is_whole and (loaded := loads.next_batch(end, 0.01)) is not None:
                    publisher.publish(loaded)
                    on_batch(loaded)
                    while not loaded.is_last:
                        if (more := loads.next_batch(end, 0.1)) is not None:
                            loaded = more
                            publisher.publish(loaded)
                            on_batch(loaded)
                if is_whole:
                    publisher.drain(0)
                    capture.acknowledge(capture.lane, self.flushed())
                    if until(loads, publisher.standing):
                        return

    def flushed(self) -> Lsn:
        standing = self.publisher.standing
        return min([standing.position, *filter(None, [least_point(standing.loads)])])

    def _count(self, loads: Loads) -> None:
        self.read_anew += sum(loads.read_anew.values())

    def _encoding(self, selections: Mapping[StreamId, Selection]) -> Callable[[ChangeRows], Sequence[Events]]:
        with connect(self._url) as connection:
            tables = {table.stream: table for table in discover(connection, list(selections))}
        made = encoder(EncodingSettings())
        chosen = {
            stream: StreamSelection(stream, selection, tables[stream].schema.key)
            for stream, selection in selections.items()
        }

        def encode(changes: ChangeRows) -> Sequence[Events]:
            stream = changes.stream
            view = StreamView(
                stream,
                str(stream),
                chosen[stream].columns(changes),
                tables[stream].primary_key,
                tombstones=False,
            )
            return [made.encode(changes, view, chosen[stream].actions(changes))]

        return encode
