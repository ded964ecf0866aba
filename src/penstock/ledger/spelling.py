"""A position's words in a file, its number in memory: reading and writing of one field.

    in the file    <spelled>: words     penstock.places.<spelled>: {position, …}
    in memory      <field>: number      penstock.places.<spelled>: {position, at, …}   places[number] = words

The entry under `places` is the link between both: while its `position` is the field's number, the words
beside it are that number's and stay as they are. A field whose number moved takes its words from `places`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.ledger.dialect import Fields, Places, Unread, parsed_position

_OWN, _PLACES = "penstock", "places"


class Words(Protocol):
    """How words stand in the fields of a section, and what they say by themselves."""

    def take(self, fields: Fields, name: str) -> Place | None:
        """None if there are none; ValueError if they cannot be read."""

    def put(self, fields: Fields, name: str, place: Place) -> None: ...

    def drop(self, fields: Fields, name: str) -> None: ...

    def number(self, place: Place) -> Lsn:
        """Of words that another tool wrote."""

    def belongs(self, place: Place, note: Fields) -> bool:
        """Whether our note under `places` is of these words."""

    def note(self, place: Place) -> Fields:
        """What is kept of them beside their number, in the file."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """One position: the ledger's `field`, the file's `spelled` (which may be the same)."""

    field: str
    spelled: str
    words: Words

    def read(self, fields: Fields, places: Places, behind: Lsn | None = None) -> Lsn | None:
        """The number, now in the field. `behind`: a number that words of another place must not share."""
        try:
            place = self.words.take(fields, self.spelled)
            number = None if place is None else self._number(fields, place, behind)
        except (ValueError, TypeError, KeyError):
            fields[self.field] = Unread.of(fields.get(self.spelled))
            return None
        if place is None or number is None:
            return None
        _notes(fields)[self.spelled] = {"position": str(number), **self.words.note(place), **place.to_json()}
        fields[self.field] = str(number)
        places[number] = place
        return number

    def write(self, fields: Fields, places: Places) -> None:
        value = fields.get(self.field)
        if self.field != self.spelled:
            fields.pop(self.field, None)
        if isinstance(value, Unread):
            fields[self.spelled] = value.words
            return
        number = parsed_position(value)
        if number is None:
            self.words.drop(fields, self.spelled)
            self._forget(fields)
            return
        place = self._noted(fields, number) or places.get(number)
        if place is None:
            raise ValueError(f"{self.spelled}: the source's words for position {number} are not known")
        self.words.put(fields, self.spelled, place)
        _notes(fields)[self.spelled] = {"position": str(number), **self.words.note(place)}

    def moved(self, fields: Fields) -> Lsn | None:
        """The number, if it is not that of the words that were read; None also if there is none."""
        number = parsed_position(fields.get(self.field))
        return None if number is None or self._noted(fields, number) is not None else number

    def _noted(self, fields: Fields, number: Lsn) -> Place | None:
        note = self._note(fields)
        is_of_it = note is not None and note.get("position") == str(number) and "at" in note
        return Place.from_json(note) if note is not None and is_of_it else None

    def _number(self, fields: Fields, place: Place, behind: Lsn | None) -> Lsn:
        note = self._note(fields)
        if note is None:  # a file, or a stream of it, that was never ours
            number = self.words.number(place)
            return Lsn(number + 1) if number == behind else number
        if not self.words.belongs(place, note):
            raise ValueError(f"{self.spelled} was changed by somebody else")
        return Lsn.parse(note["position"])

    def _note(self, fields: Fields) -> Fields | None:
        own = fields.get(_OWN)
        notes = own.get(_PLACES) if isinstance(own, dict) else None
        note = notes.get(self.spelled) if isinstance(notes, dict) else None
        return note if isinstance(note, dict) else None

    def _forget(self, fields: Fields) -> None:
        if self._note(fields) is None:
            return
        own = fields[_OWN]
        del own[_PLACES][self.spelled]
        if not own[_PLACES]:
            del own[_PLACES]
        if not own:
            del fields[_OWN]


def _notes(fields: Fields) -> dict[str, Any]:
    own = fields[_OWN] = fields.get(_OWN) or {}
    notes: dict[str, Any] = own.setdefault(_PLACES, {})
    return notes
