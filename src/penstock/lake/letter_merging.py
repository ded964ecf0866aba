"""Few files for many dead letters: what every round adds a file to must not grow with the number of rounds.

A table's record names its files of dead letters, every round of an upsert table reads which of them are open,
and readers of a Parquet table's letters get a link to each. So when there are more than `FILES_MAX` that were
not merged, a round writes, as a part of its own commit:

- one file of `HISTORY` with the letters of those files, in their order: readers see what they saw before. It
  takes in what was merged last as long as that is no larger, so each letter is written again once for each
  doubling, and there are few such files, until they have `BYTES_MAX`;
- one file of `OPEN` with the place of each letter that is still open, so that no round has to read history;
- nothing of what was settled: an open letter is in the file above, and all others are history. Only where
  there is more to merge than one round takes on, settled keys stay for the files that are left.

The files' names are new, and they count with the commit that names them: a round that is killed leaves some
that nobody names, and merges again. Those that were merged go when no commit that is kept names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.core.stream import StreamId
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import HISTORY, OPEN, SETTLED, DataFile, DeadLetters, MergedLetters
from penstock.lake.apply import Outcome, StreamWork
from penstock.lake.dead_letters import (
    DEAD_LETTERS,
    OPEN_LETTERS,
    SETTLED_KEYS,
    is_history,
    letter_batches,
    newest_settled,
    open_letters,
)
from penstock.lake.light import Stages, letters_are_light
from penstock.lake.output import OutputFile

FILES_MAX = 32
#: Of what one round merges.
FILES_AT_ONCE = 256
BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LetterMerge:
    letters: DeadLetters
    first: int  # of the files of letters that become one
    end: int
    directory: Path
    width: int | None  # of the key; None: of an append table, where no letter is open
    bytes: int


def merge_letters(stages: Stages, works: Sequence[StreamWork], outcomes: Mapping[StreamId, Outcome]) -> None:
    """Where a table's letters are in many files, let the commit of its outcome make them few."""
    planned = [(work, plan_merge(work)) for work in works]
    tasks = {work.stream: task for work, task in planned if task is not None}
    light = letters_are_light([task.bytes for task in tasks.values()])
    done = stages.run(merge_files, list(tasks.values()), "merge dead letters", light=light)
    for (stream, task), after in zip(tasks.items(), done, strict=True):
        if after is not None:
            outcomes[stream].merged_letters = MergedLetters(task.letters, after)


def plan_merge(work: StreamWork) -> LetterMerge | None:
    """What this round merges; None: there is no need, or one of the files is not there."""
    try:
        return _planned(work)
    except OSError:  # no round without need to read it fails for it
        return None


def _planned(work: StreamWork) -> LetterMerge | None:
    letters, directory = work.letters, work.table.dead_letters_directory
    single = [number for number, name in enumerate(letters.files) if not is_history(Path(name))]
    if len(single) + len(letters.settled) <= FILES_MAX:
        return None
    sizes = [(directory / name).stat().st_size for name in letters.files]
    first, end = _run(sizes, single[0] if single else len(sizes))
    telling = sum((directory / name).stat().st_size for name in (*letters.open, *letters.settled))
    width = len(work.target.schema.key) if work.target.write == "upsert" else None
    return LetterMerge(letters, first, end, directory, width, sum(sizes[first:end]) + telling)


def _run(sizes: Sequence[int], start: int) -> tuple[int, int]:
    """Which files become one, of those from `start` on that were not merged, and those before that were."""
    first = end = start
    size = 0
    while end < len(sizes) and end - start < FILES_AT_ONCE:
        if end > start and size + sizes[end] > BYTES_MAX:
            break
        size += sizes[end]
        end += 1
    while end > first > 0 and sizes[first - 1] <= min(size, BYTES_MAX - size):
        first -= 1
        size += sizes[first]
    return first, end


def merge_files(task: LetterMerge) -> DeadLetters | None:
    """What the letters are afterwards, row by row the same; None: some cannot be read."""
    try:
        return _merged(task)
    except (OSError, pa.ArrowException):
        return None


def _merged(task: LetterMerge) -> DeadLetters:
    letters, directory = task.letters, task.directory
    merged = [directory / name for name in letters.files[task.first : task.end]]
    with OutputFile(directory / new_file_name(HISTORY.removesuffix("-")), DEAD_LETTERS) as history:
        for path in merged:
            for batch in letter_batches(path):
                history.write_batch(batch)
    files = (*letters.files[: task.first], *_name(history.data_file), *letters.files[task.end :])
    if task.width is None:
        return replace(letters, files=files)
    settled = [directory / name for name in letters.settled]
    telling = [*merged, *(directory / name for name in letters.open), *settled]
    with OutputFile(directory / new_file_name(OPEN.removesuffix("-")), OPEN_LETTERS) as still_open:
        still_open.write_table(open_letters(telling, task.width))
    with OutputFile(directory / new_file_name(SETTLED.removesuffix("-")), SETTLED_KEYS) as left:
        if settled and task.end < len(letters.files):
            left.write_table(newest_settled(settled, task.width))
    return replace(letters, files=files, open=_name(still_open.data_file), settled=_name(left.data_file))


def _name(file: DataFile | None) -> tuple[str, ...]:
    return () if file is None else (file.name,)
