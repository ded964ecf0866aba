"""Carries comparisons out: digests of both sides, then the rows of what differs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from penstock.core.verify_report import Difference, VerifiedStream
from penstock.lake.dead_letters import key_columns, open_letters
from penstock.lake.light import Stages
from penstock.sources.types import cast_text
from penstock.verify import drill
from penstock.verify.canonical import RowHashes, hash_rows
from penstock.verify.comparison import Comparison
from penstock.verify.digest import Buckets, Digest, bucket_of
from penstock.verify.sides import is_held
from penstock.verify.sip_kernels import Hashes
from penstock.verify.tasks import DigestResult, DigestTask, PickResult, PickTask, digest_side, pick_rows

Task = TypeVar("Task", DigestTask, PickTask)
Result = TypeVar("Result", DigestResult, PickResult)
#: Of digests that tasks hand back at once: 24 bytes each.
BUCKETS_AT_ONCE_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class Digests:
    """Both sides of a comparison. None of a table that the source rewrote while it was read."""

    source: Digest
    table: Digest
    unfit: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file of the table cannot be read."""

    reason: str


def digest_all(
    stages: Stages, comparisons: Sequence[Comparison], *, light: bool
) -> list[Digests | Unreadable | None]:
    found: list[Digests | Unreadable | None] = []
    for group in _groups(comparisons):
        tasks = [DigestTask(side, each.hashing) for each in group for side in each.sides]
        weights = [weight for each in group for weight in each.weights]
        results = iter(run_beside(stages, digest_side, tasks, "digest tables", light=light, weights=weights))
        for each in group:
            source = [next(results) for _ in each.source]
            table = [next(results) for _ in each.table]
            found.append(_digests(each, source, table))
    return found


def run_beside(
    stages: Stages,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    description: str,
    *,
    light: bool,
    weights: Sequence[int],
) -> list[Result]:
    """Run `function` on each task; of sides that sessions of this process hold, in threads of it, beside the
    others. Those threads are in the socket, in Arrow or in compiled code most of the time."""
    here = [index for index, task in enumerate(tasks) if is_held(task.side)]
    if not here:
        return stages.run(function, tasks, description, light=light, weights=weights)
    away = [index for index in range(len(tasks)) if index not in set(here)]
    with ThreadPoolExecutor(len(here), "penstock-held") as threads:
        running = {index: threads.submit(function, tasks[index]) for index in here}
        elsewhere = stages.run(
            function,
            [tasks[index] for index in away],
            description,
            light=light,
            weights=[weights[index] for index in away],
        )
        found = dict(zip(away, elsewhere, strict=True))
        found |= {index: each.result() for index, each in running.items()}
    return [found[index] for index in range(len(tasks))]


def _groups(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Comparisons that share a Spark job: as many as the driver can take the digests of at once."""
    groups: list[list[Comparison]] = []
    room = 0
    for each in comparisons:
        size = each.hashing.buckets * len(each.sides)
        if not groups or size > room:
            groups.append([])
            room = BUCKETS_AT_ONCE_MAX
        groups[-1].append(each)
        room -= size
    return groups


def _digests(
    comparison: Comparison, source: Sequence[DigestResult], table: Sequence[DigestResult]
) -> Digests | Unreadable | None:
    if reason := next((result.unreadable for result in (*source, *table) if result.unreadable), ""):
        return Unreadable(reason)
    if any(result.table_rewritten for result in source):
        return None
    sides = Digest.empty(comparison.hashing.buckets), Digest.empty(comparison.hashing.buckets)
    for side, results in zip(sides, (source, table), strict=True):
        for result in results:
            side.merge(result.digest)
    return Digests(*sides, sum(result.unfit for result in source))


@dataclass(frozen=True, slots=True)
class Telling:
    """How much is said of differences. `letters`: files of the table's dead letters. `moved`: keys of which
    nothing is said, since the log may be ahead of the position for them."""

    limit: int
    letters: Sequence[Path]
    staging: Path
    shows_values: bool
    moved: tuple[Hashes, Hashes] | None = None


@dataclass(frozen=True, slots=True)
class Drilled:
    """What was found, with the rows it was found in, for whoever mends it."""

    stream: VerifiedStream
    found: drill.Found
    source: drill.Picked
    table: drill.Picked
    key: tuple[str, ...]
    is_whole: bool  # every bucket that differs was looked into


def verdict(comparison: Comparison, digests: Digests) -> tuple[VerifiedStream, Buckets]:
    differing = digests.source.differing(digests.table)
    stream = VerifiedStream(
        comparison.name,
        "different" if differing.size else "equal",
        source_rows=digests.source.total,
        table_rows=digests.table.total,
        dead_letters=digests.unfit,
        columns_not_compared=comparison.left_out,
        buckets=comparison.hashing.buckets,
        buckets_differing=int(differing.size),
    )
    return stream, differing


def look_into(
    stages: Stages,
    comparison: Comparison,
    digests: Digests,
    stream: VerifiedStream,
    differing: Buckets,
    telling: Telling,
    *,
    light: bool,
) -> Drilled | None:
    """What differs in the buckets that do; None if the source rewrote the table meanwhile, or changed too
    much of it.

    Where there are more such buckets than are looked into, rows that are known to be dead letters are taken
    out of the source's digest first: no bucket is left over that only those make differ.
    """
    known: int | None = None
    try:
        dead = open_keys(comparison, telling.letters)
        looked_into = drill.to_look_into(digests.source, digests.table, differing)
        if dead[0].size and len(looked_into) < len(differing):
            rows = _dead_rows(stages, comparison, differing, dead, telling.staging, light=light)
            if rows is None:
                return None
            left = digests.source.without(rows)
            known, differing = rows.total, left.differing(digests.table)
            looked_into = drill.to_look_into(left, digests.table, differing)
        picked = pick_differing(stages, comparison, looked_into, telling.staging, light=light)
        if picked is None:
            return None
        found, source, table = picked
        found, excused = _excused(found, source, dead)
        moved = 0
        if telling.moved is not None:
            found, moved = _unmoved(found, source, table, telling.moved)
        masks = drill.columns_in_which(
            source, table, found.different, len(comparison.key), comparison.hashing.secret
        )
        told = drill.describe(source, table, found, masks, comparison.key, telling.limit)
        missing, extra, different = (
            int(places.size) for places in (found.missing, found.extra, found.different[0])
        )
        is_whole = len(looked_into) == len(differing)
        is_equal = is_whole and not missing + extra + different
        if moved and not is_whole and not missing + extra + different:
            return None  # the others may be no more than that
        stream = replace(
            stream,
            verdict="equal" if is_equal else "different",
            dead_letters=stream.dead_letters + (excused if known is None else known),
            missing=missing,
            extra=extra,
            different=different,
            columns={name: int(mask.sum()) for name, mask in masks.items()},
            buckets_differing=len(differing),
            buckets_looked_into=len(looked_into),
            differences=told if telling.shows_values else tuple(map(_without_values, told)),
            left_out=missing + extra + different - len(told),
            notes=(f"{moved:,} rows that changed meanwhile are left to the next comparison",)
            if moved
            else (),
        )
        return Drilled(
            stream, found, source, table, comparison.key, is_whole
        )  # maps of files outlive their names
    finally:
        shutil.rmtree(telling.staging, ignore_errors=True)


def pick_differing(
    stages: Stages, comparison: Comparison, buckets: Buckets, staging: Path, *, light: bool
) -> tuple[drill.Found, drill.Picked, drill.Picked] | None:
    """What differs in these buckets, with the rows of both sides, which are mapped from `staging`; None if
    the source rewrote the table meanwhile."""
    results = _pick(stages, comparison, buckets, staging, light=light)
    if any(result.is_void for result in results):
        return None
    source, table = (_read(comparison, part) for part in _halves(comparison, results))
    return drill.pair(source.hashes, table.hashes), source, table


def _without_values(difference: Difference) -> Difference:
    bare = tuple(replace(each, source=None, table=None) for each in difference.columns)
    return replace(difference, columns=bare)


def _dead_rows(
    stages: Stages,
    comparison: Comparison,
    differing: Buckets,
    dead: tuple[Hashes, Hashes],
    staging: Path,
    *,
    light: bool,
) -> Digest | None:
    """Of the source's rows that the table lacks because they are dead letters, in these buckets."""
    results = _pick(stages, comparison, differing, staging / "dead", light=light, keys=dead)
    if any(result.is_void for result in results):
        return None
    source, table = (
        drill.Picked.read([each.path for each in part if each.path is not None], (), ()).hashes
        for part in _halves(comparison, results)
    )
    missing = drill.pair(source, table).missing
    rows = np.setdiff1d(missing, drill.without_keys(missing, source, dead))
    digest = Digest.empty(comparison.hashing.buckets)
    digest.add(
        RowHashes(source.key_high[rows], source.key_low[rows], source.row_high[rows], source.row_low[rows])
    )
    return digest


def _pick(
    stages: Stages,
    comparison: Comparison,
    buckets: Buckets,
    staging: Path,
    *,
    light: bool,
    keys: tuple[Hashes, Hashes] | None = None,
) -> list[PickResult]:
    """Rows of these buckets, of both sides; `keys`: of those alone, and their hashes.

    Tasks find the keys in a file: there may be many, and each task that has them within takes the driver's
    time and memory once more.
    """
    if not buckets.size:
        return []
    wanted = np.zeros(comparison.hashing.buckets, np.bool_)
    wanted[buckets] = True
    staging.mkdir(parents=True, exist_ok=True)
    file: Path | None = None
    if keys is not None:
        inside = keys[1][wanted[bucket_of(keys[0], len(wanted))]]
        if not inside.size:
            return []
        file = staging / "keys.npy"
        np.save(file, inside)
    tasks = [
        PickTask(side, comparison.hashing, wanted, staging / f"{number}.arrow", file)
        for number, side in enumerate(comparison.sides)
    ]
    weights = list(comparison.weights)
    return run_beside(stages, pick_rows, tasks, "look into differences", light=light, weights=weights)


def _halves(
    comparison: Comparison, results: Sequence[PickResult]
) -> tuple[Sequence[PickResult], Sequence[PickResult]]:
    return results[: len(comparison.source)], results[len(comparison.source) :]


def _read(comparison: Comparison, results: Sequence[PickResult]) -> drill.Picked:
    schema = comparison.target.arrow_schema()
    types = [schema.field(name).type for name in comparison.columns]
    paths = [result.path for result in results if result.path is not None]
    return drill.Picked.read(paths, comparison.columns, types)


def _excused(
    found: drill.Found, source: drill.Picked, dead: tuple[Hashes, Hashes]
) -> tuple[drill.Found, int]:
    """Without rows of the source that the table is known not to have, since they are dead letters there: one
    lacks a value that neither log nor table had, another does not fit a column that is not compared.

    A row of the table is never excused: it shows no older version of a dead letter, not even as deleted.
    """
    missing = drill.without_keys(found.missing, source.hashes, dead)
    return replace(found, missing=missing), int(found.missing.size - missing.size)


def _unmoved(
    found: drill.Found, source: drill.Picked, table: drill.Picked, moved: tuple[Hashes, Hashes]
) -> tuple[drill.Found, int]:
    """Without rows of these keys, and how many those were."""
    here, there = found.different
    kept = np.isin(here, drill.without_keys(here, source.hashes, moved))
    left = drill.Found(
        drill.without_keys(found.missing, source.hashes, moved),
        drill.without_keys(found.extra, table.hashes, moved),
        (here[kept], there[kept]),
    )
    before, after = (each.missing.size + each.extra.size + each.different[0].size for each in (found, left))
    return left, int(before - after)


def open_keys(comparison: Comparison, letters: Sequence[Path]) -> tuple[Hashes, Hashes]:
    """Hashes of the keys whose newest version is a dead letter."""
    nothing = np.zeros(0, np.uint64)
    schema = comparison.target.schema
    if not letters or comparison.target.write != "upsert":
        return nothing, nothing
    texts = key_columns(
        open_letters(letters, len(schema.key)).column("_key").combine_chunks(), len(schema.key)
    )
    casts = [
        cast_text(column.combine_chunks(), schema.column(name))
        for name, column in zip(schema.key, texts.columns, strict=True)
    ]
    if not texts.num_rows:
        return nothing, nothing
    hashes = hash_rows([cast.values for cast in casts], len(casts), comparison.hashing.secret)
    return hashes.key_high, hashes.key_low
