"""`lanes.json`: every lane that was ever given changes, and how far it was when this was last saved.

The source may forget a change only when every lane holds it, those included that do not run at the moment. So
a lane is on this list, durably, before it is given anything, and stays on it until somebody drops it. Its
position is saved now and then and is a lower bound: to hold the source there is safe. A lane that joins says
anew how far it is, and that may be less than it was: its tables were put back, or the source was.

A lane that is dropped is marked: later terms hold nothing for it either, until it joins again. Nor do they
read its streams, so changes of them may be in no log, and nothing at the source tells that. A lane that comes
again is told so of all its streams, as if they had not been published until then.

Streams that a join put into the publication stay written down until the lane says that it has heard: a lane
that died before it noted that changes of theirs may be missing is told again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.leader_files import LeaderFiles

LANES_FILE = "lanes.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Lane:
    """`position`: None while it has not said how far it is; `since`: when it first joined.

    `streams`: those that it was given when it last joined; `published`: those whose changes may be missing
    from before, as far as it has not heard of that. `dropped`: given up, until it joins again.
    """

    position: Lsn | None
    since: str
    streams: tuple[StreamId, ...] = ()
    published: tuple[StreamId, ...] = ()
    dropped: bool = False

    def to_json(self) -> dict[str, Any]:
        dropped = {"dropped": True} if self.dropped else {}
        return dropped | {
            "position": None if self.position is None else str(self.position),
            "since": self.since,
            "streams": [[stream.namespace, stream.name] for stream in self.streams],
            "published": [[stream.namespace, stream.name] for stream in self.published],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Lane:
        position = fields["position"]
        streams, published = (
            tuple(StreamId(*stream) for stream in fields.get(key, ())) for key in ("streams", "published")
        )
        return cls(
            None if position is None else Lsn.parse(position),
            str(fields["since"]),
            streams,
            published,
            fields.get("dropped", False),
        )


class LaneRegistry:
    """Safe to use from several threads of one process; the leader alone writes.

    `may_write` raises where this process may not lead any more: one that was stopped and wakes up, if only to
    end, would put what it knew over what its successor has written, and that cannot be done late either
    (`leader_files`). What could not be written is not so.
    """

    def __init__(self, path: Path, may_write: Callable[[], None] | None = None) -> None:
        self._path = path
        self._files = None if may_write is None else LeaderFiles(path.with_suffix(".leaders"), may_write)
        self._lock = threading.Lock()
        self._lanes = _read(path)
        self._is_saved = True
        self._joined: set[str] = set()  # and not heard of since

    def lanes(self) -> dict[str, Lane]:
        """Those that are waited for."""
        with self._lock:
            return {name: lane for name, lane in self._lanes.items() if not lane.dropped}

    def dropped(self) -> frozenset[str]:
        """Those that were given up, and may come again."""
        with self._lock:
            return frozenset(name for name, lane in self._lanes.items() if lane.dropped)

    def positions(self) -> dict[str, Lsn | None]:
        return {name: lane.position for name, lane in self.lanes().items()}

    def join(
        self, name: str, streams: Sequence[StreamId] = (), published: Sequence[StreamId] = ()
    ) -> tuple[StreamId, ...]:
        """Put a lane on the list, with its streams; it is there durably when this returns.

        All whose changes may be missing from before, and that it has not heard of: those that were published
        for it, and every one of a lane that was dropped.
        """
        with self._lock:
            lane = self._lanes.get(name) or Lane(None, _now())
            if lane.dropped:
                lane = Lane(None, _now(), published=tuple(dict.fromkeys([*lane.streams, *streams])))
            unheard = tuple(dict.fromkeys([*lane.published, *published]))
            joined = replace(lane, streams=tuple(streams), published=unheard)
            self._joined.add(name)
            if joined != self._lanes.get(name):
                self._write({**self._lanes, name: joined})
            return unheard

    def heard(self, name: str, streams: Collection[StreamId] | None = None) -> None:
        """The lane knows what was published for it, durably: these streams, or all."""
        with self._lock:
            lane = self._waited_for(name)
            if lane is None:
                return
            unheard = tuple(each for each in lane.published if streams is not None and each not in streams)
            if unheard != lane.published:
                self._write({**self._lanes, name: replace(lane, published=unheard)})

    def forget_positions(self) -> None:
        """The lanes stay, and nobody knows how far they are."""
        with self._lock:
            if self._lanes:
                self._write({name: replace(lane, position=None) for name, lane in self._lanes.items()})

    def flushed(self, name: str, position: Lsn) -> None:
        """Note how far a lane is, for the next `save`. Going back is news only right after a join."""
        with self._lock:
            lane = self._waited_for(name)
            if lane is None:
                return
            is_first = name in self._joined
            self._joined.discard(name)
            if is_first or lane.position is None or position > lane.position:
                self._lanes[name] = replace(lane, position=position)
                self._is_saved = False

    def save(self) -> None:
        """Make the positions durable, if any has changed."""
        with self._lock:
            if not self._is_saved:
                self._write(self._lanes)

    def drop(self, name: str, *, is_configured: bool) -> bool:
        """Wait for a lane no more, durably; whether that is news.

        One that the pipeline file has not, too, may come again: its target still says how far it was.
        """
        with self._lock:
            lane = self._lanes.get(name)
            if lane is None:
                if not is_configured:
                    return False
                lane = Lane(None, _now())
            elif lane.dropped:
                return False
            streams = tuple(dict.fromkeys([*lane.streams, *lane.published]))
            self._write({**self._lanes, name: Lane(None, _now(), streams, dropped=True)})
            return True

    def _waited_for(self, name: str) -> Lane | None:
        lane = self._lanes.get(name)
        return None if lane is None or lane.dropped else lane

    def _write(self, lanes: Mapping[str, Lane]) -> None:
        found = {name: lane.to_json() for name, lane in sorted(lanes.items())}
        replace_file = durable.replace if self._files is None else self._files.replace
        replace_file(self._path, durable.to_json_bytes({"format_version": FORMAT_VERSION, "lanes": found}))
        self._lanes, self._is_saved = dict(lanes), True


def notes_of_left_lanes(path: Path, configured: Collection[str]) -> list[str]:
    """What a person is told of lanes on the list that the pipeline file does not have any more."""
    return [
        f"The lane {name} is not in the pipeline file, and the source keeps all that it lacks: "
        f"`penstock lane drop {name} --yes` gives it up."
        for name, lane in sorted(_read(path).items())
        if name not in configured and not lane.dropped
    ]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(path: Path) -> dict[str, Lane]:
    try:
        fields = json.loads(path.read_bytes())
        if fields["format_version"] > FORMAT_VERSION:
            raise StateError(
                f"{path} was written by a newer Penstock.",
                remedy="Install that version of Penstock, or a later one.",
            )
        return {str(name): Lane.from_json(lane) for name, lane in fields["lanes"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"The list of lanes in {path} cannot be read.",
            remedy="Restore it from a backup. Without it the source forgets what a lane that does not run "
            "still needs; if there is no such lane, remove the file.",
        ) from error
