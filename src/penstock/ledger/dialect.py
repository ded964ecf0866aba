"""One ledger, three dialects: how the positions of a document are spelled in the state file.

Moves and recovery know numbers only: `lsn`, `cdc_from`, `next_cdc_pos` of a document in memory are
positions (`core/position.py`), whatever the source. What the contract wants in the file are the source's
own words: an LSN, a binlog file and byte, a resume token. A dialect turns the one into the other when a
document is read and written, and answers the one question in which recoveries differ. Nothing else asks
which source it is.

    file (words)  ── read ──►  document (numbers), places  ── moves ──►  document  ── write ──►  file (words)

*Places*: words belong to a number. Those of a file are noted while it is read; those of a new position come
from the log, whose manifests have them, by `StateDocument.placed` before the document is written. A
position without words cannot be written: that is a defect of the caller, never a guess.

*Numbers*: where the words do not say the number, it stands beside them in our own `penstock` section, under
`places`, with the words it belongs to. So words that somebody else changed are noticed and not taken for
ours. A file without such a section is another tool's, and its words are numbered as those of a pipeline
that begins.

*Unchanged is unchanged*: only a position that moved gets other words; all that a dialect does not know stays.
Postgres' words are the numbers, so its files pass through untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

from penstock.core.place import Place
from penstock.core.position import Lsn

SourceName = Literal["postgres", "mysql", "mongodb"]
Fields = dict[str, Any]
Places = dict[Lsn, Place]
PlaceOf = Callable[[Lsn], Place]


class Unread(str):
    """Stands where a number belongs, for words that cannot be read or are not those that we wrote."""

    words: Any

    @classmethod
    def of(cls, words: Any) -> Unread:
        unread = cls(words)
        unread.words = words
        return unread


class Dialect(Protocol):
    """How one source's state is written. Dialects have no state of their own."""

    @property
    def source(self) -> SourceName: ...

    @property
    def shares_position(self) -> bool:
        """Whether level streams share one position (type GLOBAL), or each has its own for good (STREAM)."""

    @property
    def repeats_bounds(self) -> bool:
        """Whether a round that was not committed is done again as it was, or given up for a longer one."""

    def read(self, raw: Fields) -> Places:
        """Turn the words of a file into numbers, in place. Words that cannot be read stay (`Unread`), so that
        whoever asks for the position gets an error, never none."""

    def write(self, raw: Fields, places: Places) -> None:
        """The way back, in place. ValueError if a position has no words."""

    def moved(self, raw: Fields) -> Iterator[Lsn]:
        """The positions whose words are not those that stand with them: they need others."""

    def spelled(self, field: str) -> str:
        """What people find in their file for a field of the ledger."""


class Postgres:
    """The words are the numbers."""

    source: SourceName = "postgres"
    shares_position = True
    repeats_bounds = True

    def read(self, raw: Fields) -> Places:
        return {}

    def write(self, raw: Fields, places: Places) -> None:
        return None

    def moved(self, raw: Fields) -> Iterator[Lsn]:
        return iter(())

    def spelled(self, field: str) -> str:
        return field


def global_state(raw: Fields) -> Fields | None:
    """The section of a file's shared position; None if it has none."""
    section = raw.get("global")
    state = section.get("state") if isinstance(section, dict) else None
    return state if isinstance(state, dict) else None


def stream_states(raw: Fields) -> Iterator[Fields]:
    for entry in raw.get("streams") or []:
        state = entry.get("state") if isinstance(entry, dict) else None
        if isinstance(state, dict):
            yield state


def is_empty(value: Any) -> bool:
    """Whether a temporary field says nothing: such a one is omitted when it is written."""
    return value is None or value in ("", [])


def parsed_position(value: Any) -> Lsn | None:
    """The number in a field of a document; None if there is none, or words that nobody could read."""
    try:
        return Lsn.parse(value)
    except (ValueError, TypeError):
        return None
