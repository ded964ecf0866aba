"""In which form the keys of a lane's dead letters are written: later events join them by the same bytes.

Another `format`, or another mask of a key, writes other bytes for the same key: an event of a blocked key
would go past its letters. So the form is noted with a stream's letters, and a lane that writes another one
does not begin while there are some: until the settings are back, or the letters are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.core.errors import ConfigError
from penstock.streams.letter_file import LetterFile

_FACT = "keys of "


class LetterKeys:
    """`form_of` gives a stream's form as it is now."""

    def __init__(self, file: LetterFile, lane: str, form_of: Callable[[str], str]) -> None:
        self._file = file
        self._lane = lane
        self._form_of = form_of

    def check(self) -> None:
        """A `ConfigError` if keys are written in another form than those of letters."""
        query = "SELECT DISTINCT stream FROM letters WHERE key IS NOT NULL"
        with_letters = {stream for (stream,) in self._file.rows(query)}
        noted = self._file.rows("SELECT name, value FROM facts WHERE instr(name, ?) = 1", (_FACT,))
        forms = {name.removeprefix(_FACT): form for name, form in noted}
        with self._file.transaction():
            for stream in forms.keys() - with_letters:
                self._file.execute("DELETE FROM facts WHERE name = ?", (_FACT + stream,))
        others = sorted(
            stream for stream in forms.keys() & with_letters if forms[stream] != self._form_of(stream)
        )
        if others:
            of_lane, names = f"--lane {self._lane} --yes", ", ".join(others)
            raise ConfigError(
                f"What keys are made by was changed for the lane {self._lane} (`format`, `mask`, "
                f"`mask_salt`, `prefix`, `debezium` or the schema registry) while {names} "
                f"{'has' if len(others) == 1 else 'have'} dead letters: later events of their keys would be "
                "sent before them.",
                remedy=f"Set `lanes.{self._lane}` back, replay them (`penstock dlq replay {of_lane}`), then "
                f"change it. Or give them up (`penstock dlq drop {of_lane}`) and start the lane again.",
            )

    def note(self, streams: Iterable[str]) -> None:
        """Letters of these are written."""
        for stream in streams:
            if form := self._form_of(stream):  # else every format has the same keys, or nobody knows
                self._file.set_fact(_FACT + stream, form)
