"""Events on their way to a target that takes records, in columns, with what is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.streams.blocked_keys import Rows
from penstock.streams.events import Events, Int64s


@dataclass(frozen=True, slots=True)
class Parcel:
    """`ids`: numbers of the AckTracker; of replayed dead letters, minus the letter's number.

    `keys` tells keys of streams apart, but that two may share a number: then one waits for the other without
    need. `attempts` counts errors of the record, `failures` every time it did not arrive; `refused_at`: which
    answer of the target was the last that counted, -1 if none was.
    """

    events: Events
    ids: Int64s
    keys: Int64s
    sizes: Int64s
    attempts: Int64s
    failures: Int64s
    refused_at: Int64s

    @classmethod
    def of(cls, events: Events, ids: Int64s, sizes: Int64s) -> Parcel:
        none = np.zeros(len(events), np.int64)
        return cls(events, ids, _key_numbers(events, ids), sizes, none, none, none - 1)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_replay(self) -> bool:
        return len(self.ids) > 0 and self.ids[0] < 0

    def take(self, rows: Rows) -> Parcel:
        return Parcel(
            self.events.take(rows),
            self.ids[rows],
            self.keys[rows],
            self.sizes[rows],
            self.attempts[rows],
            self.failures[rows],
            self.refused_at[rows],
        )

    def without(self, rows: Rows) -> Parcel:
        return self.take(np.delete(np.arange(len(self)), rows)) if len(rows) else self

    def joins(self, other: Parcel) -> bool:
        """Whether both can be one: the same stream, route, chunk and headers."""
        one, two = self.events, other.events
        return (one.stream, one.route, one.chunk) == (two.stream, two.route, two.chunk) and (
            one.headers.keys() == two.headers.keys()
        )


def joined(parcels: Sequence[Parcel]) -> Parcel:
    """One of all of them, in their order."""
    if len(parcels) == 1:
        return parcels[0]
    all_events = [parcel.events for parcel in parcels]
    starts = np.cumsum([0, *map(len, all_events)])
    refused = {
        row + int(start): why
        for start, events in zip(starts, all_events, strict=False)
        for row, why in events.refused.items()
    }
    events = replace(
        all_events[0],
        tx=np.concatenate([each.tx for each in all_events]),
        op=np.concatenate([each.op for each in all_events]),
        kind=np.concatenate([each.kind for each in all_events]),
        xid=np.concatenate([each.xid for each in all_events]),
        key=pa.concat_arrays([each.key for each in all_events]),
        value=pa.concat_arrays([each.value for each in all_events]),
        refused=refused,
        headers={
            name: pa.concat_arrays([each.headers[name] for each in all_events])
            for name in all_events[0].headers
        },
    )
    return Parcel(
        events,
        np.concatenate([parcel.ids for parcel in parcels]),
        np.concatenate([parcel.keys for parcel in parcels]),
        np.concatenate([parcel.sizes for parcel in parcels]),
        np.concatenate([parcel.attempts for parcel in parcels]),
        np.concatenate([parcel.failures for parcel in parcels]),
        np.concatenate([parcel.refused_at for parcel in parcels]),
    )


def _key_numbers(events: Events, ids: Int64s) -> Int64s:
    """Python's own hash: 0.1 µs a key. Events without a key have each a number of their own."""
    stream = hash(events.stream)
    numbers = np.fromiter(map(hash, events.key.to_pylist()), np.int64, len(events)) ^ stream
    if events.key.null_count:
        is_null = events.key.is_null().to_numpy(zero_copy_only=False)
        numbers[is_null] = ids[is_null]
    return numbers
