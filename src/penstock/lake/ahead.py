"""Opens tables while somebody else gets ready.

Opening a table asks its catalog, reads its metadata and lists its files: a tenth of a second and more, and a
sync that waits for capture has nothing else to do. What is found is no decision: every later question is
answered by the table as it is then, only that nothing has to be opened for it, and what did not change is
known already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from penstock.core.errors import PenstockError
from penstock.core.stream import StreamId
from penstock.destinations.base import Destination

#: Of more tables than that, few have changes, and the others' files would be listed for nothing.
LISTED_MAX = 4


@contextmanager
def looked_at(destination: Destination, streams: Collection[StreamId]) -> Iterator[None]:
    """Beside the block, which must not use the destination; when it ends, the tables are open."""
    with ThreadPoolExecutor(1, "penstock-tables") as thread:
        thread.submit(_look_at, destination, sorted(streams))
        yield


def _look_at(destination: Destination, streams: Collection[StreamId]) -> None:
    for stream in streams:
        with suppress(PenstockError):  # whoever needs it is told
            table = destination.table(stream)
            record = table.record()
            if record is not None and len(streams) <= LISTED_MAX:
                table.files(record)
