"""Two hands on one state: a change made from an earlier state, applied to the state there is now.

Loads and rounds run side by side. Each reads the state, makes the next one from it, and writes it; in between
the other may have written. What a hand changed is told by comparing its document with the one it was made
from, field by field: those of a stream's entry, the global section, our own. Changes of different fields do
not touch each other, so both stand: a load counts a stream's chunks while rounds move the position of the
table that it will replace. The same field changed by both is a defect of the caller; it is refused, never
merged.
"""

from __future__ import annotations

from typing import Any

from penstock.ledger.state import StateDocument, entry_stream

_Unit = tuple[str, ...]
_ENTRY = 2  # parts of the name of a stream's entry; those of its fields are longer
_NOTHING = object()


def rebased(document: StateDocument, now: StateDocument) -> StateDocument:
    """`document` as it would be if it had been made from `now`. ValueError: both changed the same field."""
    base = document.origin or document
    if base is now or base == now:
        return document
    if base is document:  # an earlier state, by which nothing was meant; or one that was never saved
        return document if document.state_version is None else now
    before, wanted, current = (_units(each.to_json()) for each in (base, document, now))
    result = dict(current)
    for unit in [*wanted, *(unit for unit in before if unit not in wanted)]:
        old, new, found = (units.get(unit, _NOTHING) for units in (before, wanted, current))
        if new in (old, found):
            continue
        if found != old:
            raise ValueError(f"two hands changed {' '.join(unit)} in the state at the same time")
        if new is _NOTHING:
            del result[unit]
        else:
            result[unit] = new
    return StateDocument(_document(result))


def _units(raw: dict[str, Any]) -> dict[_Unit, Any]:
    units: dict[_Unit, Any] = {}
    for key, value in raw.items():
        if key == "streams":
            for entry in value or []:
                units |= _fields_of(entry)
        elif key == "penstock":
            units |= {("penstock", name): field for name, field in (value or {}).items()}
        else:
            units[(key,)] = value
    return units


def _fields_of(entry: dict[str, Any]) -> dict[_Unit, Any]:
    at: _Unit = ("streams", str(entry_stream(entry)))
    state = entry.get("state") or {}
    return {
        at: {name: field for name, field in entry.items() if name != "state"},
        **{(*at, "state", name): field for name, field in state.items() if name != "penstock"},
        **{(*at, "penstock", name): field for name, field in (state.get("penstock") or {}).items()},
    }


def _document(units: dict[_Unit, Any]) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    entries: dict[str, dict[str, Any]] = {
        unit[1]: {**value, "state": {}}
        for unit, value in units.items()
        if unit[0] == "streams" and len(unit) == _ENTRY
    }
    for unit, value in units.items():
        if unit[0] == "penstock":
            raw.setdefault("penstock", {})[unit[1]] = value
        elif unit[0] != "streams":
            raw[unit[0]] = value
        elif len(unit) > _ENTRY and unit[1] in entries:
            state = entries[unit[1]]["state"]
            (state if unit[2] == "state" else state.setdefault("penstock", {}))[unit[3]] = value
    raw["streams"] = list(entries.values())
    raw["type"] = "GLOBAL" if raw.get("global") is not None else "STREAM"
    return raw
