"""How old changes are when a table shows them, and how old those are that it does not show yet.

Times are those of the commits at the source, as the log has them: from the statistics in the footers of its
files, so that no row is read. A footer is read once or twice per stream and round, a step of the log once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.columns import COMMIT_TS
from penstock.log.manifest import Manifest
from penstock.log.reader import ChangeLog, LogFile


@dataclass(slots=True)
class _Searched:
    """The log from where a table is, up to `to`; `oldest`: when the first change of the table's in it was
    committed, None if there is none; `bytes`: of the files with its changes."""

    position: Lsn
    to: Lsn
    oldest: float | None = None
    bytes: int = 0


class Freshness:
    """`committed` may be called from another thread than the others."""

    def __init__(self, log: Path) -> None:
        self._directory = log
        self._of_newest_round: dict[StreamId, float] = {}
        self.open_log()

    def open_log(self) -> None:
        self._log = ChangeLog(self._directory)
        self._searched: dict[StreamId, _Searched] = {}

    def forget(self) -> None:
        """What newer rounds took, of which nobody knows here."""
        self._of_newest_round = {}

    def committed(self, stream: StreamId, files: Sequence[LogFile]) -> None:
        """A round is committed; the age of its oldest change is how long that took."""
        began = oldest_commit(min(files, key=lambda file: file.first_tx).path) if files else None
        if began is not None:
            self._of_newest_round[stream] = max(0.0, time.time() - began)

    def of_newest_round(self) -> dict[StreamId, float]:
        """From commit at the source to commit in the table, in seconds."""
        return dict(self._of_newest_round)

    def lag(self, positions: Mapping[StreamId, Lsn]) -> dict[StreamId, float]:
        """The age of the oldest sealed change behind each position, in seconds; 0 if there is none."""
        self._searched = {
            stream: known
            if (known := self._searched.get(stream)) is not None and known.position == position
            else _Searched(position, position)
            for stream, position in positions.items()
        }
        self._search(self._searched)
        now = time.time()
        return {
            stream: 0.0 if each.oldest is None else max(0.0, now - each.oldest)
            for stream, each in self._searched.items()
        }

    def lag_bytes(self) -> dict[StreamId, int]:
        """What the log's files take in which those changes are, as of when `lag` was asked for last."""
        return {stream: each.bytes for stream, each in self._searched.items()}

    def _search(self, streams: Mapping[StreamId, _Searched]) -> None:
        """Go on where each search ended; a step that is there stays as it is."""
        for step in self._log.after(min(each.to for each in streams.values())) if streams else ():
            for table in step.tables:
                found = streams.get(table.stream)
                if found is not None and step.end > found.to:
                    found.bytes += sum(file.bytes for file in table.files)
                    if found.oldest is None:
                        found.oldest = self._began(step, table.stream)
            for each in streams.values():
                each.to = max(each.to, step.end)

    def _began(self, step: Manifest, stream: StreamId) -> float:
        table = step.table(stream)
        files = table.files if table is not None else ()
        began = oldest_commit(self._log.directory / files[0].path) if files else None
        return began if began is not None else datetime.fromisoformat(step.sealed_at).timestamp()


def oldest_commit(path: Path) -> float | None:
    """When the first transaction in a file of the log was committed; None if its footer does not say."""
    try:
        footer = pq.read_metadata(path)
    except OSError:  # retention took it
        return None
    for index in range(footer.num_columns if footer.num_row_groups else 0):
        column = footer.row_group(0).column(index)
        if column.path_in_schema == COMMIT_TS and column.statistics is not None:
            oldest = column.statistics.min
            return float(oldest.timestamp()) if oldest is not None else None
    return None
