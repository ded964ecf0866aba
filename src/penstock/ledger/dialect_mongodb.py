"""The state of a MongoDB source: a resume token for each stream, never one for all.

    {"stream": "orders", "namespace": "shop", "sync_mode": "cdc",
     "state": {"_data": "82673F82FE…", "next_data": "82673F8311…", "chunks": [],
               "penstock": {"places": {"_data": {"position": "673F82FE/2"}, "next_data": {…}}}}}

`_data` is the ledger's `cdc_from`, `next_data` its `next_cdc_pos`; a stream is never level with others. A
round that was not committed is given up for one that begins at the same `_data` and goes as far as there
is.

The number of a token is its cluster time, or one more where the token stands behind the last event of a
transaction (`core/resume_token.py`). A token that another tool wrote may stand in the middle of one, so it is
numbered by its time: what is left of that transaction is still to come.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.ledger.dialect import Fields, Places, SourceName, is_empty, parsed_position, stream_states
from penstock.ledger.spelling import Spelling


class _Token:
    def take(self, fields: Fields, name: str) -> Place | None:
        data = fields.get(name)
        if is_empty(data):
            return None
        if not isinstance(data, str):
            raise ValueError("the data of a resume token is text")
        return Place(ResumeToken(data).data)

    def put(self, fields: Fields, name: str, place: Place) -> None:
        fields[name] = place.text

    def drop(self, fields: Fields, name: str) -> None:
        fields.pop(name, None)

    def number(self, place: Place) -> Lsn:
        return ResumeToken(place.text).time

    def belongs(self, place: Place, note: Fields) -> bool:
        position = parsed_position(note.get("position"))
        return position is not None and ResumeToken(place.text).fits(position)

    def note(self, place: Place) -> Fields:
        return {}


_DATA = Spelling("cdc_from", "_data", _Token())
_NEXT = Spelling("next_cdc_pos", "next_data", _Token())


class MongoDb:
    source: SourceName = "mongodb"
    shares_position = False
    repeats_bounds = False

    def read(self, raw: Fields) -> Places:
        places: Places = {}
        for fields in stream_states(raw):
            start = _DATA.read(fields, {})  # of this stream only: another tool's may be inside a transaction
            _NEXT.read(fields, places, behind=start)  # two tokens of one time are two places still
        return places

    def write(self, raw: Fields, places: Places) -> None:
        for fields in stream_states(raw):
            _DATA.write(fields, places)
            _NEXT.write(fields, places)

    def moved(self, raw: Fields) -> Iterator[Lsn]:
        for fields in stream_states(raw):
            for spelling in (_DATA, _NEXT):
                position = spelling.moved(fields)
                if position is not None:
                    yield position

    def spelled(self, field: str) -> str:
        return {"cdc_from": "_data", "next_cdc_pos": "next_data"}.get(field, field)


def is_mongodb(raw: Fields) -> bool:
    """Whether another tool's file looks like one of MongoDB."""
    return any("_data" in fields or "next_data" in fields for fields in stream_states(raw))
