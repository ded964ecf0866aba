"""Runs the stages of a round for all its streams at once.

`fold_task` makes rows and touched keys of each stream's changes, `rewrite_task` takes the touched rows out
of the table, `complete_task` finishes rows that needed the table, `settle_task` looks after dead letters
where there are some. However many tables a round has, it costs at most four Spark jobs; a small one costs
none (`light`). What comes back is, per stream, the files to add and the names to remove; nothing is visible
to anyone until the caller commits them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.cursor import Cursors
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.base import DestinationTable
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import (
    DataFile,
    DeadLetters,
    Marker,
    MergedLetters,
    PositionDeletes,
    TableRecord,
)
from penstock.lake.buckets import WHOLE, Bucket, IndivisibleError
from penstock.lake.complete_task import CompleteTask, complete_rows
from penstock.lake.dead_letters import DEAD_LETTERS, unknown_letters
from penstock.lake.delete_stage import delete_touched
from penstock.lake.evolve import ColumnSource
from penstock.lake.fold_task import FoldResult, FoldTask, Staged, fold_changes, stands_alone, truncated_at
from penstock.lake.light import Stages, completing_is_light, folds_are_light, rewriting_is_light
from penstock.lake.output import OutputFile
from penstock.lake.rewrite_task import RewriteResult, RewriteTask, rewrite_files
from penstock.lake.session import balanced
from penstock.lake.settle_task import SettleTask, settle_letters
from penstock.lake.skip import SkipRule
from penstock.lake.target import Target
from penstock.log.reader import LogFile

#: Of a round that follows the log; so much is folded in one task where it cannot be cut.
ROUND_BYTES_MAX = 256 * 1024 * 1024
ROWS_PER_TASK_MIN = 200_000
ROWS_PER_BUCKET_MAX = 1_000_000
BYTES_PER_BUCKET_MAX = 256 * 1024 * 1024
#: From each stream's staging directory to what its tasks made: rows, and the keys that they replace.
FirstStage = Callable[[Mapping[StreamId, Path]], Mapping[StreamId, Sequence[FoldResult]]]
EXPANSION = 4  # rows in memory against rows in Parquet, roughly


@dataclass(frozen=True, slots=True)
class StreamWork:
    """One stream's part of a round: its changes in `(after, to]` onto `files` of its table."""

    stream: StreamId
    table: DestinationTable
    target: Target
    files: tuple[DataFile, ...]
    changes: tuple[LogFile, ...]
    truncates: tuple[tuple[int, int], ...]
    after: Lsn
    to: Lsn
    columns: Mapping[str, Sequence[ColumnSource]]  # by schema id of the log's files
    rewrite: tuple[ColumnSource, ...] | None  # the table's own columns change
    skip: SkipRule | None = None
    read_from: int | None = None  # the snapshot whose files these are
    again: bool = False  # the table holds the changes already, to the last (`rewinding`)
    letters: DeadLetters = field(default_factory=DeadLetters)  # the table's

    @property
    def change_bytes(self) -> int:
        return sum(file.bytes for file in self.changes)

    def commit(
        self,
        outcome: Outcome,
        marker: Marker,
        *,
        expected_to: Lsn | None = None,
        expected_cursor: Cursors | None = None,
        rewinds: str | None = None,
    ) -> TableRecord:
        """What the files of `outcome` make of the table, as `commit_changes` has it."""
        return self.table.commit_changes(
            expected_to=expected_to,
            marker=marker,
            schema=self.target.schema,
            added=outcome.added,
            removed=sorted(outcome.removed),
            dead_letter_files=[*outcome.dead_letters, *outcome.settled],
            deletes=outcome.deletes,
            columns=self.target.arrow_schema(),
            read_from=self.read_from,
            expected_cursor=expected_cursor,
            rewinds=rewinds,
            merged_letters=outcome.merged_letters,
        )


@dataclass(slots=True)
class Outcome:
    """What a stream's commit adds and removes.

    `unresolved` counts rows with values that neither the log nor the table has; they are dead letters. Of
    changes that are applied again it counts those that were none before.
    """

    added: list[DataFile] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    deletes: list[PositionDeletes] = field(default_factory=list)
    dead_letters: list[DataFile] = field(default_factory=list)
    settled: list[DataFile] = field(default_factory=list)  # keys whose dead letters are history now
    merged_letters: MergedLetters | None = None  # of those that the table has
    operations: dict[str, int] = field(default_factory=dict)
    unresolved: int = 0

    @property
    def dead_letter_count(self) -> int:
        return sum(file.rows for file in self.dead_letters)


def apply(stages: Stages, works: Sequence[StreamWork]) -> dict[StreamId, Outcome]:
    """Write the files of a round; nothing is visible until the caller commits them."""
    return merge(stages, works, lambda staging: fold(stages, works, staging))


def merge(stages: Stages, works: Sequence[StreamWork], make_rows: FirstStage) -> dict[StreamId, Outcome]:
    """Put what a first stage makes, rows and the keys they replace, into the tables of `works`."""
    outcomes = {work.stream: Outcome() for work in works}
    staging = {work.stream: work.table.new_staging_directory() for work in works}
    try:
        folded = make_rows(staging)
        _gather(folded, outcomes)
        rewritten = _take_out_touched(stages, works, folded, staging, outcomes)
        _complete(stages, works, folded, rewritten, outcomes)
        for work in works:
            if work.again:
                _leave_out_known_letters(work, outcomes[work.stream])
        _settle(stages, works, outcomes)
        for work in works:
            _keep_columns_of_empty_table(work, outcomes[work.stream])
    finally:
        for directory in staging.values():
            shutil.rmtree(directory, ignore_errors=True)
    return outcomes


def _keep_columns_of_empty_table(work: StreamWork, outcome: Outcome) -> None:
    """A table without rows keeps one file, so that readers find its columns."""
    if work.table.deletes_rows:
        return
    if not outcome.added and outcome.removed >= {file.name for file in work.files}:
        path = work.table.files_directory / new_file_name("empty")
        with OutputFile(path, work.target.arrow_schema(), even_if_empty=True) as output:
            pass
        outcome.added += _present(output.data_file)


def fold(
    stages: Stages, works: Sequence[StreamWork], staging: Mapping[StreamId, Path]
) -> dict[StreamId, list[FoldResult]]:
    """The first stage of a round of the log.

    IndivisibleError if changes that are applied again cannot be cut and are more than a round has.
    """
    tasks = [
        (work, task)
        for work in works
        for task in _fold_tasks(work, staging[work.stream], _parts(work, stages))
    ]
    folds = [task for _, task in tasks]
    light, rows = folds_are_light(folds), [sum(file.rows for file in task.files) for task in folds]
    results = stages.run(fold_changes, folds, "fold changes", light=light, weights=rows)
    found: dict[StreamId, list[FoldResult | None]] = {work.stream: [] for work in works}
    for (work, _), result in zip(tasks, results, strict=True):
        found[work.stream].append(result)
    indivisible = [work for work in works if None in found[work.stream]]
    if any(work.again and work.change_bytes > ROUND_BYTES_MAX for work in indivisible):
        raise IndivisibleError
    whole = [task for work in indivisible for task in _fold_tasks(work, staging[work.stream], 1)]
    again = stages.run(fold_changes, whole, "fold changes whole", light=folds_are_light(whole))
    for work, result in zip(indivisible, again, strict=True):
        found[work.stream] = [result]
    return {stream: [result for result in results if result] for stream, results in found.items()}


def _gather(folded: Mapping[StreamId, Sequence[FoldResult]], outcomes: Mapping[StreamId, Outcome]) -> None:
    for stream, results in folded.items():
        outcome = outcomes[stream]
        for result in results:
            outcome.added += result.files
            outcome.dead_letters += _present(result.dead_letters)
            for operation, count in result.operations.items():
                outcome.operations[operation] = outcome.operations.get(operation, 0) + count


def _parts(work: StreamWork, stages: Stages) -> int:
    """Into how many tasks a stream's changes are cut: by cores, and so that each fits into memory."""
    rows = sum(file.rows for file in work.changes)
    by_rows = rows // ROWS_PER_TASK_MIN
    by_cores = min(stages.cores, by_rows) if by_rows > 1 else 1
    if stands_alone(work.target, work.changes, work.skip):
        return by_cores
    # Rows that lack large values are completed from the table's, so those count too. The table may have
    # none yet, or smaller ones, and one transaction may be as large as it likes: so do the changes' own.
    table_rows = sum(file.rows for file in work.files)
    row_bytes = EXPANSION * sum(file.bytes for file in work.files) // max(1, table_rows)
    size = max(rows * row_bytes, EXPANSION * work.change_bytes)
    by_memory = max(rows // ROWS_PER_BUCKET_MAX, size // BYTES_PER_BUCKET_MAX) + 1
    return max(by_cores, by_memory)


def _fold_tasks(work: StreamWork, staging: Path, parts: int) -> list[FoldTask]:
    alone = stands_alone(work.target, work.changes, work.skip)
    return [
        FoldTask(
            target=work.target,
            files=work.changes,
            after=work.after,
            to=work.to,
            columns=work.columns,
            truncates=work.truncates,
            skip=work.skip,
            path=work.table.files_directory / new_file_name("changes"),
            dead_letter_path=work.table.dead_letters_directory / new_file_name("changes"),
            staging=staging / f"{parts}-{part}",
            bucket=WHOLE if alone else Bucket(part, parts),
            share=(part, parts) if alone else (0, 1),
            again=work.again,
        )
        for part in range(parts)
    ]


def _take_out_touched(
    stages: Stages,
    works: Sequence[StreamWork],
    folded: Mapping[StreamId, Sequence[FoldResult]],
    staging: Mapping[StreamId, Path],
    outcomes: Mapping[StreamId, Outcome],
) -> dict[StreamId, list[tuple[Path | None, ...]]]:
    """Stage 2, by each table's way. What comes back is where the rows are that pending ones need."""
    left = []
    for work in works:
        if any(result.truncated for result in folded[work.stream]):
            outcomes[work.stream].removed |= {file.name for file in work.files}
        else:
            left.append(work)
    picked: dict[StreamId, list[tuple[Path | None, ...]]] = {work.stream: [] for work in works}
    by_files = [work for work in left if not work.table.deletes_rows]
    for stream, rewritten in _rewrite(stages, by_files, folded, staging, outcomes).items():
        picked[stream] += [result.picked for result in rewritten]
    by_rows = [work for work in left if work.table.deletes_rows]
    for stream, deleted in delete_touched(stages, by_rows, folded, staging).items():
        for result in deleted:
            picked[stream].append(result.picked)
            outcomes[stream].deletes += result.deletes
            _replace_files(outcomes[stream], result.replaced)
    return picked


def _rewrite(
    stages: Stages,
    works: Sequence[StreamWork],
    folded: Mapping[StreamId, Sequence[FoldResult]],
    staging: Mapping[StreamId, Path],
    outcomes: Mapping[StreamId, Outcome],
) -> dict[StreamId, list[RewriteResult]]:
    touched_of = {work.stream: _touched_files(work, folded[work.stream]) for work in works}
    light = rewriting_is_light([file for files in touched_of.values() for file in files])
    cores = 1 if light else stages.cores
    tasks: list[tuple[StreamId, RewriteTask, int]] = []
    for work in works:
        results, touched = folded[work.stream], touched_of[work.stream]
        shares = balanced([file.bytes for file in touched], min(2 * cores, len(touched)))
        for number, indices in enumerate(shares):
            share = [touched[index] for index in indices]
            task = RewriteTask(
                target=work.target,
                files=tuple(_successor(work, file) for file in share),
                staged=tuple(result.staged for result in results),
                columns=work.rewrite,
                picked=tuple(
                    staging[work.stream] / f"{number}-{bucket}.picked.arrow" for bucket in range(len(results))
                ),
                truncated_at_us=truncated_at(results),
            )
            tasks.append((work.stream, task, sum(file.bytes for file in share)))
    rewrites, sizes = [task for _, task, _ in tasks], [size for _, _, size in tasks]
    done = stages.run(rewrite_files, rewrites, "rewrite touched files", light=light, weights=sizes)
    rewritten: dict[StreamId, list[RewriteResult]] = {work.stream: [] for work in works}
    for (stream, _, _), result in zip(tasks, done, strict=True):
        rewritten[stream].append(result)
        _replace_files(outcomes[stream], result.replaced)
    return rewritten


def _touched_files(work: StreamWork, results: Sequence[FoldResult]) -> list[DataFile]:
    whole = work.rewrite is not None or truncated_at(results) is not None
    return [file for file in work.files if whole or _may_hold(file, results)]


def _replace_files(outcome: Outcome, replaced: Mapping[str, Sequence[DataFile]]) -> None:
    for name, successors in replaced.items():
        outcome.removed.add(name)
        outcome.added += successors


def _successor(work: StreamWork, file: DataFile) -> tuple[str, Path, Path]:
    directory = work.table.files_directory
    return file.name, work.table.path(file), directory / new_file_name("rewritten")


def _complete(
    stages: Stages,
    works: Sequence[StreamWork],
    folded: Mapping[StreamId, Sequence[FoldResult]],
    found: Mapping[StreamId, Sequence[tuple[Path | None, ...]]],
    outcomes: Mapping[StreamId, Outcome],
) -> None:
    tasks: list[tuple[StreamId, CompleteTask]] = []
    for work in works:
        for bucket, result in enumerate(folded[work.stream]):
            if result.staged.pending is None:
                continue
            picked = (paths[bucket] for paths in found[work.stream])
            task = CompleteTask(
                target=work.target,
                pending=result.staged.pending,
                picked=tuple(path for path in picked if path is not None),
                path=work.table.files_directory / new_file_name("completed"),
                dead_letter_path=work.table.dead_letters_directory / new_file_name("changes"),
                position=work.to,
                again=work.again,
            )
            tasks.append((work.stream, task))
    rows = [task for _, task in tasks]
    done = stages.run(complete_rows, rows, "complete rows", light=completing_is_light(rows))
    for (stream, _), completed in zip(tasks, done, strict=True):
        outcomes[stream].added += completed.files
        outcomes[stream].dead_letters += _present(completed.dead_letters)
        outcomes[stream].unresolved += completed.dead_letters.rows if completed.dead_letters else 0


def _leave_out_known_letters(work: StreamWork, outcome: Outcome) -> None:
    """Rows that do not fit are dead letters already, open or settled since: each is one only once."""
    directory = work.table.dead_letters_directory
    written = [directory / file.name for file in outcome.dead_letters]
    if not written:
        return
    letters, outcome.unresolved = unknown_letters(
        work.table.dead_letter_paths(), written, work.to, len(work.target.schema.key)
    )
    with OutputFile(directory / new_file_name("changes"), DEAD_LETTERS) as output:
        if letters.num_rows:
            output.write_table(letters)
    outcome.dead_letters = _present(output.data_file)


def _settle(stages: Stages, works: Sequence[StreamWork], outcomes: Mapping[StreamId, Outcome]) -> None:
    """Streams with dead letters learn which of them a later change has made history."""
    tasks: list[tuple[StreamId, SettleTask]] = []
    for work in works:
        # What these changes settle of older letters, they settled when they came.
        is_first = work.target.write == "upsert" and not work.again
        before = work.table.dead_letter_paths() if is_first else ()
        directory = work.table.dead_letters_directory
        written = tuple(directory / file.name for file in outcomes[work.stream].dead_letters)
        if work.target.write == "append" or not work.changes or not (before or written):
            continue
        task = SettleTask(
            target=work.target,
            files=work.changes,
            after=work.after,
            to=work.to,
            columns=work.columns,
            truncates=work.truncates,
            before=before,
            written=written,
            path=directory / new_file_name("settled"),
            skip=work.skip,
        )
        tasks.append((work.stream, task))
    settling = [task for _, task in tasks]
    done = stages.run(settle_letters, settling, "settle dead letters", light=folds_are_light(settling))
    for (stream, _), settled in zip(tasks, done, strict=True):
        outcomes[stream].settled += _present(settled)


def _may_hold(file: DataFile, results: Iterable[FoldResult]) -> bool:
    """Whether the file's key range overlaps that of any touched keys; unknown bounds overlap."""
    return any(_overlap(file, result.staged) for result in results if result.staged.keys is not None)


def _overlap(file: DataFile, touched: Staged) -> bool:
    bounds = (file.key_min, file.key_max, touched.key_min, touched.key_max)
    if any(bound is None or type(bound) is not type(file.key_min) for bound in bounds):
        return True
    return file.key_min <= touched.key_max and touched.key_min <= file.key_max  # type: ignore[operator]


def _present(file: DataFile | None) -> list[DataFile]:
    return [] if file is None else [file]
