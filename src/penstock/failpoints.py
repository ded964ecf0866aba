"""Named places where a test may end the process, fill the disk, raise an error or make it wait.

`PENSTOCK_FAILPOINT="ledger.prepared=kill"` ends the process with SIGKILL the first time that place
is reached; `=kill@3` the third time; `=enospc` raises "no space left on device", `=fail` an error
that nobody expects; `=pause` waits until the file named by `PENSTOCK_FAILPOINT_GATE` exists. Without
the variable a failpoint costs one dictionary look-up. Before it strikes, it appends its name to the
file in `PENSTOCK_FAILPOINT_REPORT`, so that a test can assert that it struck, and where.

All names stand in `FAILPOINTS`; reaching an unknown one is an error, so that the list is complete.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path

#: name → what has just happened when it is reached
FAILPOINTS: dict[str, str] = {
    "capture.slot_created": "the slot exists, or the log knows where it begins; nothing else is written",
    "capture.fields_remembered": "fields that came later are remembered, no row has their columns",
    "log.file_write": "about to write rows to a step's file (n-th write)",
    "log.files_written": "a step's data files are durable, its manifest is not there",
    "log.manifest_written": "the step is committed, nothing else knows",
    "log.retention": "old manifests are gone, their data files are not",
    "checkpoint.write": "about to write the checkpoint",
    "load.recorded": "the load record is durable, the state does not name the chunks",
    "load.planned": "all chunks are in the state, none picked up",
    "load.preparing": "chunks are durably preparing, no data is written",
    "load.written": "chunk files are written, not committed",
    "load.committed": "chunks are committed at the destination, the state still says preparing",
    "load.chunks_removed": "committed chunks are removed from the state",
    "load.before_swap": "all chunks are committed, the old table is still visible",
    "load.swapped": "the new table is visible, the state does not say so",
    "load.done": "chunks: [] is durable",
    "resync.ordered": "slot and positions are gone, the state says what is compared, the old log is there",
    "rewind.prepared": "a rewind's generation is durable, no data is written",
    "rewind.written": "data files of what is applied again are written, not committed",
    "rewind.committed": "the table is of the rewind's generation, the state does not say so",
    "rewind.done": "the state says that it was applied again",
    "cdc.preparing": "about to write next_cdc_pos and processing",
    "cdc.prepared": "next_cdc_pos and processing are durable, no data is written",
    "cdc.written": "data files of one stream are written, not committed",
    "cdc.committed": "one stream is committed, processing still names it",
    "cdc.processed": "processing no longer names the stream",
    "cdc.all_processed": "processing is empty, lsn has not moved",
    "cdc.moved": "lsn has moved, nothing is acknowledged",
    "cdc.acknowledged": "the source is acknowledged",
    "incremental.preparing": "the greatest cursors are noted, about to write olake_next_cursor_*",
    "incremental.prepared": "olake_next_cursor_* are durable, no data is written",
    "incremental.written": "data files of the rounds are written, none is committed",
    "incremental.committed": "one stream's rows are committed, the state still has olake_next_cursor_*",
    "incremental.moved": "the stream's cursors have moved",
    "destination.file_write": "about to write rows to a table's file (n-th write)",
    "destination.version_built": "the version directory is complete, there is no commit record",
    "destination.recorded": "the commit record is there, `current` shows the version before",
    "destination.switched": "`current` shows the new version",
    "iceberg.staged": "an Iceberg commit is checked and staged, the catalog does not have it",
    "iceberg.committed": "the catalog has an Iceberg commit, nothing else knows",
    "compact.rewritten": "data files are rewritten by a commit of their own, their deletes are still there",
    "compact.deletes_merged": "files of deletes are merged, or those that concern no file are gone",
    "compact.manifests_merged": "manifests are merged, no snapshot has expired",
    "compact.written_down": "what kept snapshots hold is written down, none has expired",
    "compact.expired": "snapshots and their files are gone, nothing was looked at for orphans",
    "compact.orphans_removed": "files that belong to nobody are gone, the timetable does not say so",
    "migrate.begun": "the log begins where OLake's tables end, starts are recorded; there is no state",
    "state.version_written": "the state's next version is durable, state.json is its predecessor",
    "shapes.rendering": "about to render changes for the shapes that look alike (n-th time)",
    "shapes.snapshot_write": "about to write rows to a chunk of a shape's snapshot (n-th write)",
    "shapes.commit_write": "about to write a record to the commit log of shapes",
    "shapes.commit_written": "the record is written, nothing of it need be on disk",
    "shapes.committed": "the record is durable, nobody knows",
    "shapes.file_write": "about to write to a shape's own log (n-th write)",
    "shapes.file_written": "a shape's own log is durable, its boundary is where it was",
    "shapes.boundary_moved": "a shape's boundary has moved, its commits are still in the commit log",
    "shapes.segment_removed": "a segment of the commit log is gone",
    "shapes.compacted": "the merged file of a shape is durable, nothing names it",
    "shapes.compaction_switched": "the merged file is in use, the old files are still there",
    "shapes.cleanup_renamed": "a shape's directory is renamed, its files are still there",
    "streams.kinesis_read_back": "Kinesis: the tail is read back, the term has written nothing",
    "streams.kinesis_sending": "Kinesis: about to send a call (n-th call)",
    "streams.kinesis_sent": "Kinesis: a call has succeeded, nobody knows",
    "streams.kinesis_noting": "Kinesis: about to write a checkpoint",
    "streams.kinesis_noted": "Kinesis: the checkpoint is durable, nobody knows",
    "streams.kafka_sent": "Kafka: events and position are with the producer, nothing is committed",
    "streams.kafka_committed": "Kafka: a bucket's transaction is committed, nobody knows",
    "streams.opened": "a term has shut out earlier ones at the target, nothing else",
    "streams.begun": "the target has written down where the lane goes on from, nothing was sent",
    "streams.handed_over": "a batch is with the publisher, nothing need be at the target",
    "streams.letter_written": "dead letters are durable, the position has not passed their events",
    "streams.letter_replayed": "the target has replayed letters, they are still in the file",
    "streams.record_sent": "Kinesis: a call has succeeded, nothing is marked or noted",
    "streams.record_noted": "Kinesis: the target has noted how far everything is, nobody knows",
    "streams.load_begun": "a snapshot for a load is there, nobody has written down its point",
    "streams.load_chunk": "the last rows of a chunk are made, and not with the publisher",
    "streams.load_level": "the last changes of a load are made, and not with the publisher",
    "streams.ordered": "a rewind or resync is written down at the target, the order still stands",
    "streams.file_written": "file: events and their commit line are written, nothing need be on disk",
    "streams.file_committed": "file: the commit is durable, nobody knows",
}

_reached: dict[str, int] = {}
_lock = threading.Lock()


def reach(name: str) -> None:
    """Strike here if the environment says so."""
    wanted = os.environ.get("PENSTOCK_FAILPOINT")
    if not wanted:
        return
    if name not in FAILPOINTS:
        raise LookupError(f"failpoint {name!r} is not listed in penstock.failpoints.FAILPOINTS")
    for rule in wanted.split(","):
        place, _, action = rule.partition("=")
        if place == name:
            _strike(name, action or "kill")


def _strike(name: str, action: str) -> None:
    action, _, nth = action.partition("@")
    with _lock:
        _reached[name] = _reached.get(name, 0) + 1
        if _reached[name] != int(nth or 1):
            return
    report = os.environ.get("PENSTOCK_FAILPOINT_REPORT")
    if report:
        with open(report, "a", encoding="utf-8") as file:
            file.write(f"{name}={action}\n")
            file.flush()
            os.fsync(file.fileno())
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    elif action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif action == "fail":
        raise RuntimeError(f"the failpoint {name} has struck")
    elif action == "pause":
        gate = Path(os.environ["PENSTOCK_FAILPOINT_GATE"])
        while not gate.exists():
            time.sleep(0.02)
    else:
        raise ValueError(f"failpoint action {action!r} is not one of kill, enospc, fail, pause")
