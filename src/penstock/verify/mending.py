"""Comparing and putting right, in turns: rows that differ are given what the source has for them.

What is written is what was found under one snapshot, at its position; `lake.repair` says why that is exact,
and what a crash leaves. Then everything is compared anew, under another snapshot.

A comparison looks into as many rows as `drill.ROWS_MAX` says: a table in which more differs is put right in
pieces, each a commit of its own: memory does not grow with what differs, and a piece that is committed stays
right, whatever becomes of the next. It ends. A piece that leaves nothing unlooked at should be the last one,
and after any other fewer buckets should differ, each row having one bucket for good: of those after which it
is not so there are `REPAIRS_MAX` at most. And no table takes more of them than make up as many rows as both
sides have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.config import Config
from penstock.core.errors import SourceBusyError
from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.core.verify_report import VerifiedStream, VerifyReport
from penstock.lake.keys import distinct
from penstock.lake.lane import LakeLane
from penstock.lake.repair import ChosenRows, Repair
from penstock.lake.spark_starter import SparkStarter
from penstock.verify import drill
from penstock.verify.comparison import new_secret
from penstock.verify.opened import Opened
from penstock.verify.outcome import Drilled
from penstock.verify.run import Verification, VerifyOptions

REPAIRS_MAX = 5  # that did not help; nothing here will then


def run_and_repair(
    config: Config,
    opened: Opened,
    spark: SparkStarter,
    listener: ProgressListener,
    options: VerifyOptions,
    *,
    repair: bool,
) -> VerifyReport:
    """Compare; with `repair`, put right what differs and compare again, until nothing does."""
    if repair and opened.lane is None:
        raise SourceBusyError(
            "`penstock run` is at work on this pipeline, and it alone writes to the tables.",
            remedy="Stop it, run this command, then start it again; or compare without --repair.",
        )
    repaired: Counter[StreamId] = Counter()
    in_vain: Counter[StreamId] = Counter()
    left: dict[StreamId, str] = {}  # by the lane, and why
    differed: dict[StreamId, tuple[int, int]] = {}  # of how many buckets how many, when it was last repaired
    if repair:
        options = replace(options, secret=new_secret())
    while True:
        verification = Verification(config, opened, spark, listener, options)
        report = verification.run()
        if opened.lane is None or not repair or report.equal:
            break
        given_up = {
            stream
            for stream, (_, found) in verification.found.items()
            if in_vain[stream] >= REPAIRS_MAX or repaired[stream] > rows_of_both(found)
        }
        now = _repair(verification, opened.lane, given_up, left)
        for stream, rows in now.items():
            _, found = verification.found[stream]
            listener.note(f"{stream}: {rows:,} rows were given what the source has for them.{_more(found)}")
            repaired[stream] += rows
            of, differing = found.stream.buckets, found.stream.buckets_differing
            of_before, before = differed.get(stream, (0, 0))
            in_vain[stream] += is_all(found) or (of == of_before and differing >= before)
            differed[stream] = of, differing
        if not now:
            for each in report.streams:
                if each.verdict == "different":
                    stream = StreamId.parse(each.stream)
                    tried = repaired[stream] if stream in given_up else None
                    listener.note(f"{stream} {why_it_still_differs(each, tried, left.get(stream, ''))}")
            break
    if not repair:
        return report
    streams = tuple(replace(each, repaired=repaired[StreamId.parse(each.stream)]) for each in report.streams)
    return replace(report, streams=streams)


def why_it_still_differs(told: VerifiedStream, repaired: int | None = None, left: str = "") -> str:
    """What to say of a stream that nothing more is done for. `repaired`: so many rows were, and it does not
    help. `left`: why the lane left it as it is."""
    if repaired is not None:
        return (
            f"still differs after {repaired:,} rows of it were repaired. "
            f"`penstock resync {told.stream}` loads it anew."
        )
    if told.against != "source":
        return (
            "was not repaired: its table has a row for each change (`write: append`), and rows are put right "
            "in tables that have one for each row of the source."
        )
    if told.columns_not_compared:
        names = ", ".join(told.columns_not_compared)
        return (
            f"was not repaired: columns that changed at the source were not compared, so its rows are not "
            f"known whole: {names}. Run the same command again after a sync that brings a change of it."
        )
    if not told.found:
        return (
            "was not repaired: no row that differs was found in the buckets of keys that were looked into. "
            f"`penstock resync {told.stream}` loads it anew."
        )
    return f"was not repaired: {left or 'there was nothing to write. Run the same command again.'}"


def is_all(drilled: Drilled) -> bool:
    """Whether every bucket that differs was looked into."""
    return drilled.stream.buckets_looked_into >= drilled.stream.buckets_differing


def rows_of_both(drilled: Drilled) -> int:
    return drilled.stream.source_rows + drilled.stream.table_rows


def _more(drilled: Drilled) -> str:
    if is_all(drilled):
        return ""
    told = drilled.stream
    return (
        f" They lie in {told.buckets_looked_into:,} of {told.buckets_differing:,} buckets that differ: the "
        f"rest is compared and repaired next. `penstock resync {told.stream}` may be sooner done."
    )


def _repair(
    verification: Verification, lane: LakeLane, given_up: set[StreamId], left: dict[StreamId, str]
) -> dict[StreamId, int]:
    """Put right what the run found, as far as it looked; how many rows of each stream. Of those that the lane
    leaves as they are, `left` has why."""
    repaired: dict[StreamId, int] = {}
    for position in sorted({position for position, _ in verification.found.values()}):
        repairs = {
            stream: mended
            for stream, (at, drilled) in verification.found.items()
            if at == position and stream not in given_up and (mended := mend(drilled)) is not None
        }
        here = lane.repair(position, repairs)
        left |= here
        repaired |= {stream: each.keys.num_rows for stream, each in repairs.items() if stream not in here}
    return repaired


def mend(drilled: Drilled) -> Repair | None:
    """What would put the table right in the rows that were found; None: the source's rows are not whole,
    or there is nothing to write."""
    if drilled.stream.columns_not_compared or drilled.stream.against != "source":
        return None
    repair = repair_of(drilled.found, drilled.source, drilled.table, drilled.key)
    return repair if repair.keys.num_rows else None


def repair_of(found: drill.Found, source: drill.Picked, table: drill.Picked, key: Sequence[str]) -> Repair:
    """What gives the keys of these rows what the source has for them."""
    # All rows of a key go, also the right one of a key that is there twice: it is written again.
    kept, gone = drill.of_same_keys(source.hashes, table.hashes, found.extra)
    wrong = np.unique(np.concatenate([found.missing, found.different[0], kept]))
    rows, without_source = ChosenRows(source.rows, wrong), ChosenRows(table.rows, gone)
    names = list(key)
    held = without_source.select(names)
    keys = distinct(pa.concat_tables([rows.select(names).cast(held.schema), held]))
    return Repair(keys, rows, without_source)
