"""`TableWatch`: whether tables came or changed at the source meanwhile, or streams in the pipeline file.

It looks now and then, in a thread. Capture is told what it found (a join publishes tables that came, and puts
those back that somebody took out of the publication) while the term goes on; if that fails, a note says why,
and nothing has happened to the term. When the lane has streams to begin with then, `due_at` is a position
behind everything that was committed by that time: a term that has come there has sent whatever it knew of
tables that are gone, and ends; the next one begins with the streams there are.

Not while rows are loaded: a join releases the lane's snapshot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from penstock.capture.remote import RemoteCapture
from penstock.core.errors import CaptureAwayError, PenstockError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.followed import FollowedStream, followed_streams, join
from penstock.streams.settings import StreamSettings

LOOK_EVERY_S = 60.0
_logger = structlog.get_logger("penstock.streams")


class TableWatch:
    """Of one term; asked by the lane's thread. `on_joined`: capture does not know any more how far it is."""

    def __init__(
        self,
        settings: StreamSettings,
        capture: RemoteCapture,
        epoch: Lsn,
        streams: Mapping[StreamId, FollowedStream],
        on_joined: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.due_at: Lsn | None = None
        self._capture = capture
        self._epoch = epoch
        self._known = {name: _captured_as(stream) for name, stream in streams.items()}
        self._on_joined = on_joined
        self._note = note
        self._said = ""
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._thread: threading.Thread | None = None
        self._lost: CaptureAwayError | None = None
        self._joining = threading.Lock()
        self._is_over, self._is_settled = False, True

    def look(self) -> None:
        """If it is time; returns at once."""
        if self._lost is not None:
            raise self._lost
        if self.due_at is not None or time.monotonic() < self._look_at:
            return
        if self._thread is None or not self._thread.is_alive():
            self._look_at = time.monotonic() + LOOK_EVERY_S
            self._thread = threading.Thread(target=self._look, name="stream-table-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Capture is not joined any more on behalf of this term."""
        with self._joining:
            self._is_over = True

    def _look(self) -> None:
        try:
            settings = self.settings.with_streams_of_now()
            streams = followed_streams(settings)
            found = {name: _captured_as(stream) for name, stream in streams.items()}
            is_published = all(settings.source.is_captured(stream.table) for stream in streams.values())
            is_known = all(self._known.get(name) == known for name, known in found.items())
            if is_published and is_known and self._is_settled:
                return
            with self._joining:
                if not self._is_over:
                    self._is_settled = False
                    self._join(settings, streams)
                    self._known |= found
                    self._is_settled = True
        except CaptureAwayError as error:
            self._lost = error
        except PenstockError as error:
            if error.message != self._said:
                self._said = error.message
                self._note(f"Could not look for tables that came or changed. {error}")

    def _join(self, settings: StreamSettings, streams: Mapping[StreamId, FollowedStream]) -> None:
        started = join(self._capture, streams)
        self._on_joined()
        if started.epoch != self._epoch:
            raise CaptureAwayError("Capture has begun another term.", remedy="None needed.")
        if started.published or not streams.keys() <= self._known.keys():
            self.settings = settings
            target = self._capture.note_target()
            self._capture.read_to(target)
            self.due_at = target
            _logger.info("tables came or changed: the lane begins with them soon", position=str(target))


def _captured_as(stream: FollowedStream) -> object:
    """What capture must be told again if it changes."""
    table = stream.table
    # A table that was dropped and made again is another one to the publication.
    return stream.full_identity, table.oid, tuple((leaf.oid, leaf.stream) for leaf in table.leaves)
