"""The state of a MySQL or MariaDB source: binlog places, shared by all level streams.

    "global": {"state": {"server_id": 1234567890, "state": {"name": "mysql-bin.000070", "pos": 772591},
                         "next_cdc_pos": "mysql-bin.000070:800000", "processing": ["shop.orders"],
                         "gtid_set": "3e11fa47-…:1-77", "server_uuid": "3e11fa47-…",
                         "penstock": {"places": {"state": {"position": "46/BC9EF", "at": "mysql-bin.0000…"},
                                                 "next_cdc_pos": {…, "gtid_set": "3e11fa47-…:1-80"}}}},
               "streams": ["shop.orders"]}

`gtid_set` is that of `state`, and is left out where the server has none. A stream that is not level has its
own `cdc_from` and `next_cdc_pos`, spelled like the shared `next_cdc_pos`. Older files of OLake are read
too: they have `state.position{Name,Pos}`, the oldest without the level that holds `server_id`.

There is nothing to acknowledge at the source, and a round is finished with its bounds as Postgres' is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.core.binlog_place import BinlogPlace
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.ledger.dialect import Fields, Places, SourceName, global_state, is_empty, stream_states
from penstock.ledger.spelling import Spelling


class _PlaceText:
    """`file:byte` as text; its GTID set is in our note."""

    def take(self, fields: Fields, name: str) -> Place | None:
        text = fields.get(name)
        if is_empty(text):
            return None
        if not isinstance(text, str):
            raise ValueError("a binlog place is text")
        place = str(BinlogPlace.parse(text))
        note = ((fields.get("penstock") or {}).get("places") or {}).get(name) or {}
        return Place(place, str(note.get("gtid_set", "")))

    def put(self, fields: Fields, name: str, place: Place) -> None:
        fields[name] = place.text

    def drop(self, fields: Fields, name: str) -> None:
        fields.pop(name, None)

    def number(self, place: Place) -> Lsn:
        return Lsn(BinlogPlace.parse(place.text).number)

    def belongs(self, place: Place, note: Fields) -> bool:
        return note.get("at") == place.text

    def note(self, place: Place) -> Fields:
        return place.to_json()


class _PlaceObject(_PlaceText):
    """`{"name": …, "pos": …}`, with the GTID set beside it."""

    def take(self, fields: Fields, name: str) -> Place | None:
        found = fields.get(name)
        if not found:
            return None
        if not isinstance(found, dict):
            raise ValueError("a binlog place is an object")
        older = found.get("position")
        file, pos = (older["Name"], older["Pos"]) if older else (found.get("name"), found.get("pos"))
        if file in (None, "") and not pos:  # OLake's, before its first round
            return None
        if not isinstance(file, str) or not isinstance(pos, int):
            raise ValueError("a binlog place is a file's name and a number")
        return Place(str(BinlogPlace(file, pos)), str(fields.get("gtid_set") or ""))

    def put(self, fields: Fields, name: str, place: Place) -> None:
        at = BinlogPlace.parse(place.text)
        held = fields.get(name)
        others = {key: value for key, value in held.items() if key != "position"} if held else {}
        fields[name] = {**others, "name": at.name, "pos": at.pos}
        if place.gtid_set:
            fields["gtid_set"] = place.gtid_set
        else:
            fields.pop("gtid_set", None)

    def drop(self, fields: Fields, name: str) -> None:
        return None  # the shared position never goes; what stands there could not be read, or is none

    def note(self, place: Place) -> Fields:
        return {"at": place.text}


_SHARED = Spelling("lsn", "state", _PlaceObject())
_TARGET = Spelling("next_cdc_pos", "next_cdc_pos", _PlaceText())
_OWN = Spelling("cdc_from", "cdc_from", _PlaceText())


class MySql:
    source: SourceName = "mysql"
    shares_position = True
    repeats_bounds = True

    def read(self, raw: Fields) -> Places:
        _nest_server(raw.get("global"))
        places: Places = {}
        for fields, spelling in _spellings(raw):
            spelling.read(fields, places)
        return places

    def write(self, raw: Fields, places: Places) -> None:
        for fields, spelling in list(_spellings(raw)):
            spelling.write(fields, places)

    def moved(self, raw: Fields) -> Iterator[Lsn]:
        found = (spelling.moved(fields) for fields, spelling in _spellings(raw))
        return (position for position in found if position is not None)

    def spelled(self, field: str) -> str:
        return "state" if field == "lsn" else field


def is_mysql(raw: Fields) -> bool:
    """Whether another tool's file looks like one of MySQL."""
    state = global_state(raw)
    return state is not None and any(name in state for name in ("server_id", "state", "position"))


def server_id_of(raw: Fields) -> int | None:
    """What a file's writer registers under as a replica; None if it does not say."""
    section = raw.get("global") or {}
    server_id = (global_state(raw) or {}).get("server_id", section.get("server_id"))
    return server_id if isinstance(server_id, int) and not isinstance(server_id, bool) else None


def _spellings(raw: Fields) -> Iterator[tuple[Fields, Spelling]]:
    shared = global_state(raw)
    if shared is not None:
        yield shared, _SHARED
        yield shared, _TARGET
    for fields in stream_states(raw):
        yield fields, _OWN
        yield fields, _TARGET


def _nest_server(section: Any) -> None:
    """The oldest files have `{"server_id": …, "state": {"position": …}}`; later ones have a level more."""
    state = section.get("state") if isinstance(section, dict) else None
    if isinstance(state, dict) and "position" in state and "state" not in state:
        server = {"server_id": section.pop("server_id")} if "server_id" in section else {}
        section["state"] = {**server, "state": state}
