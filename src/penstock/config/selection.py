"""Which streams a pipeline has: the entries of `streams:` against the tables there are. Pure.

A stream named exactly is governed by that entry, wherever it stands; otherwise by the last pattern
that matches it. `exclude` takes away what patterns brought in, never what was named exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.problems import nearest
from penstock.core.errors import ConfigError
from penstock.core.stream import StreamId


def choose(
    entries: Sequence[StreamId], exclude: Sequence[StreamId], available: Sequence[StreamId]
) -> dict[StreamId, int]:
    """Each chosen stream, in order, with the index of the entry that governs it."""
    for entry in entries:
        if not entry.is_pattern and entry not in set(available):
            raise not_there(entry, available)
    chosen = choose_of_those_there(entries, exclude, available)
    if not chosen:
        raise ConfigError(
            "No table matches the streams of the pipeline file.",
            detail=f"`streams` has {', '.join(map(str, entries))}; the source has {len(available)} tables.",
            remedy="Run `penstock discover` to see the tables, then correct `streams` or `exclude`.",
        )
    return chosen


def choose_of_those_there(
    entries: Sequence[StreamId], exclude: Sequence[StreamId], available: Sequence[StreamId]
) -> dict[StreamId, int]:
    """The same, and no error if one that is named is not there, or none is."""
    exact = {entry: index for index, entry in enumerate(entries) if not entry.is_pattern}
    chosen: dict[StreamId, int] = {}
    for stream in sorted(set(available)):
        if stream in exact:
            chosen[stream] = exact[stream]
        elif not any(pattern.matches(stream) for pattern in exclude):
            matching = [i for i, entry in enumerate(entries) if entry.is_pattern and entry.matches(stream)]
            if matching:
                chosen[stream] = matching[-1]
    return chosen


def unmatched(entries: Sequence[StreamId], available: Sequence[StreamId]) -> list[StreamId]:
    """Patterns that match no table: most likely a slip of the pen."""
    return [
        entry
        for entry in entries
        if entry.is_pattern and not any(entry.matches(table) for table in available)
    ]


def not_there(stream: StreamId, available: Sequence[StreamId]) -> ConfigError:
    """The error for a stream that the file names and the source has not, with the nearest name it has."""
    close = nearest(str(stream), map(str, available))
    hint = f"Did you mean {close}? " if close else ""
    return ConfigError(
        "The pipeline file names this table, but the source has none of that name that this user may see.",
        stream=str(stream),
        remedy=f"{hint}Names are case-sensitive and written without quotes; "
        "`penstock discover` lists what there is.",
    )
