"""Finds every row in which tables differ from their source, for whoever writes those rows (`resync --diff`).

A comparison as `penstock verify` makes it, with three differences: the table is compared where it stands,
since no log leads from there to the snapshot; *all* buckets that differ are looked into; and no row is
excused for being a dead letter, since the source has it whole.

Bounded: buckets are finer than for a comparison that only tells (a digest is at most 12 MiB), so that fewer
rows that are equal are read again with those that differ. What is read again lies on disk, and of that no
more is looked into than `LOOKED_INTO_ROWS_MAX` rows and `LOOKED_INTO_BYTES_MAX`; a table in which more would
have to be, or more than a third of the rows differ, is better loaded. Small tables are compared in any case.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import DataFile
from penstock.lake.change_set import Flags
from penstock.lake.comparing import BetterLoaded, Differing, HeldTable
from penstock.lake.dead_letters import key_columns, open_letters
from penstock.lake.keys import distinct
from penstock.lake.light import Stages
from penstock.lake.load_progress import LoadProgress
from penstock.lake.load_task import LoadResult, LoadTask, load_chunk
from penstock.lake.repair import ChosenRows, Repair
from penstock.sources.open import open_source
from penstock.sources.types import cast_text
from penstock.verify import drill
from penstock.verify.comparison import Comparison, Cut, Under, are_light, compare_with_source
from penstock.verify.digest import BUCKETS_MAX, Buckets
from penstock.verify.mending import repair_of
from penstock.verify.outcome import (
    BUCKETS_AT_ONCE_MAX,
    Digests,
    Unreadable,
    digest_all,
    open_keys,
    pick_differing,
)
from penstock.verify.run import SHARES_PER_CORE
from penstock.verify.sides import SourceSide
from penstock.verify.view import NotComparableError, Pin, as_written

FINE_BUCKETS_MAX = 1 << 19
LOOKED_INTO_ROWS_MAX = 1_000_000
LOOKED_INTO_BYTES_MAX = 4 << 30
SMALL_ROWS_MAX = 100_000  # looked into however many of them differ
DIFFERING_SHARE_MAX = 1 / 3


def comparer_of(
    config: Config, spark: Callable[[], SparkSession], listener: ProgressListener
) -> Differences | None:
    """Of sources whose rows can be compared with a table's."""
    return Differences(config, spark, listener) if config.source.type == "postgres" else None


class Differences:
    """A `Comparer`. Nothing is opened before it is asked."""

    def __init__(self, config: Config, spark: Callable[[], SparkSession], listener: ProgressListener) -> None:
        self._config = config
        self._listener = listener
        self._stages = Stages(spark)

    def compare(
        self, tables: Mapping[StreamId, HeldTable], snapshot: str
    ) -> Iterator[tuple[StreamId, Differing | BetterLoaded | None]]:
        source = open_source(self._config.source)
        reading = source.reading(source.identity().version)
        views = {stream: as_written(_pin(held), held.target) for stream, held in tables.items()}
        light = are_light(views.values(), sum(held.info.bytes for held in tables.values()))
        shares = 1 if light else SHARES_PER_CORE * self._stages.cores
        comparisons: dict[StreamId, Comparison] = {}
        with LoadProgress(reading, self._listener, "verify") as progress:
            with reading.session() as session:
                for stream, held in tables.items():
                    rows = self._config.loading.rows_per_chunk
                    try:
                        comparisons[stream] = compare_with_source(
                            held.info,
                            views[stream],
                            Under(reading, snapshot, reader=progress.reader(stream)),
                            Cut.of(session, reading, held.info, rows, 1.0),
                            shares,
                            buckets_max=_buckets_max(shares),
                        )
                    except NotComparableError as error:
                        yield stream, BetterLoaded(str(error))
            for stream in comparisons:
                rows_estimated = tables[stream].info.estimated_rows
                self._listener.stream_started(str(stream), "verify", rows_estimated)
            digests = digest_all(self._stages, list(comparisons.values()), light=light)
            for (stream, comparison), digested in zip(comparisons.items(), digests, strict=True):
                found: Differing | BetterLoaded | None = None
                compared = 0
                if isinstance(digested, Unreadable):
                    found = BetterLoaded("a file of its table cannot be read")
                elif digested is not None:
                    found = self._look_into(comparison, digested, tables[stream])
                    compared = digested.source.total
                self._listener.stream_finished(str(stream), "verify", compared)
                yield stream, found

    def _look_into(
        self, comparison: Comparison, digests: Digests, held: HeldTable
    ) -> Differing | BetterLoaded | None:
        rows = digests.source.total
        light = are_light([as_written(_pin(held), held.target)], held.info.bytes)
        differing = digests.source.differing(digests.table)
        why_not = too_much(digests, differing, held.info.bytes)
        if why_not is not None:
            return BetterLoaded(why_not)
        letters = self._letters(comparison, held, light=light) if digests.unfit else ()
        if letters is None:
            return None
        staging = held.table.new_staging_directory()
        try:
            picked = pick_differing(self._stages, comparison, differing, staging, light=light)
        finally:
            shutil.rmtree(staging, ignore_errors=True)  # maps of files outlive their names
        if picked is None:
            return None
        found, source, table = picked
        repair = repair_of(found, source, table, comparison.key)
        if letters and comparison.target.soft_deletes:
            repair = _without_letters(repair, comparison, held, letters, table)
        count = int(found.missing.size + found.extra.size + found.different[0].size)
        return Differing(repair if repair.keys.num_rows else None, count, rows, letters)

    def _letters(
        self, comparison: Comparison, held: HeldTable, *, light: bool
    ) -> tuple[DataFile, ...] | None:
        """The source's rows that the table cannot hold, as a load would leave them beside it."""
        files, letters = held.table.files_directory, held.table.dead_letters_directory
        sides = [side for side in comparison.source if isinstance(side, SourceSide)]
        tasks = [
            LoadTask(
                chunk,
                target=comparison.target,
                path=files / new_file_name("unfit"),
                dead_letter_path=letters / new_file_name("load"),
            )
            for side in sides
            for chunk, _ in side.chunks
        ]
        results = self._stages.run(read_letters, tasks, "read rows that do not fit", light=light)
        if any(result.table_rewritten for result in results):
            return None
        return tuple(result.dead_letters for result in results if result.dead_letters is not None)


class _OnlyLetters:
    """A sieve that lets no row through."""

    def drop(self, arrays: Sequence[pa.Array], unfit: Flags | None) -> Flags:
        every: Flags = np.ones(len(arrays[0]), np.bool_)
        return every

    def letters(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        return letters


def read_letters(task: LoadTask) -> LoadResult:
    return load_chunk(task, _OnlyLetters())


def too_much(digests: Digests, differing: Buckets, source_bytes: int) -> str | None:
    """Why a table is better loaded than put right; None: it is not.

    How many keys differ is told by how many buckets do: keys fall into buckets at random.
    """
    buckets, count = digests.source.rows.size, int(differing.size)
    rows = max(digests.source.total, digests.table.total)
    looked_into = int(np.maximum(digests.source.rows, digests.table.rows)[differing].sum())
    size = looked_into * source_bytes // max(1, digests.source.total)
    if size > LOOKED_INTO_BYTES_MAX:
        return f"its rows are long, and {looked_into:,} of {rows:,} would have to be looked into"
    if looked_into <= SMALL_ROWS_MAX:
        return None
    likely = math.inf if count == buckets else -buckets * math.log1p(-count / buckets)
    if likely > rows * DIFFERING_SHARE_MAX:
        return f"more than a third of its {rows:,} rows differ"
    if looked_into > LOOKED_INTO_ROWS_MAX:
        return f"about {int(likely):,} of its {rows:,} rows differ, too many to look into"
    return None


def _without_letters(
    repair: Repair,
    comparison: Comparison,
    held: HeldTable,
    letters: Sequence[DataFile],
    table: drill.Picked,
) -> Repair:
    """Of a table that keeps deleted rows: no older version of a row that does not fit stays, not even as
    deleted."""
    paths = [held.table.dead_letters_directory / file.name for file in letters]
    schema = comparison.target.schema
    texts = key_columns(open_letters(paths, len(schema.key)).column("_key").combine_chunks(), len(schema.key))
    casts = [
        cast_text(column.combine_chunks(), schema.column(name))
        for name, column in zip(schema.key, texts.columns, strict=True)
    ]
    unfit = pa.table([cast.values for cast in casts], names=list(comparison.key)).drop_null()
    keys = distinct(pa.concat_tables([repair.keys, unfit.cast(repair.keys.schema)]))
    gone = drill.without_keys(repair.gone.places, table.hashes, open_keys(comparison, paths))
    return replace(repair, keys=keys, gone=ChosenRows(repair.gone.table, gone))


def _buckets_max(shares: int) -> int:
    """So that the digests of all shares of both sides are at once in the driver's hands."""
    fitting = max(1, BUCKETS_AT_ONCE_MAX // (2 * shares))
    return max(BUCKETS_MAX, min(FINE_BUCKETS_MAX, 1 << (fitting.bit_length() - 1)))


def _pin(held: HeldTable) -> Pin:
    assert held.record.marker is not None
    return Pin(held.table, held.record, held.record.marker.to or Lsn(0), None)
