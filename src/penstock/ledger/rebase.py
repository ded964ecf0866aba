"""Two hands on one state: a change made from an earlier state, applied to the state there is now.

Loads and rounds run side by side. Each reads the state, makes the next one from it, and writes it; in between
the other may have written. What a hand changed is told by comparing its document with the one it was made
from, entry by entry: a stream's, the global section, a field of our own. Changes of different entries do not
touch each other, so both stand. The same entry changed by both is a defect of the caller, who must keep
a stream in one hand at a time; it is refused, never merged.
"""

from __future__ import annotations

from typing import Any

from penstock.ledger.state import StateDocument, entry_stream

_Unit = tuple[str, str]
_NOTHING = object()


def rebased(document: StateDocument, now: StateDocument) -> StateDocument:
    """`document` as it would be if it had been made from `now`. ValueError: both changed the same entry."""
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
            raise ValueError(f"two hands changed {unit[1] or unit[0]} in the state at the same time")
        if new is _NOTHING:
            del result[unit]
        else:
            result[unit] = new
    return StateDocument(_document(result))


def _units(raw: dict[str, Any]) -> dict[_Unit, Any]:
    units: dict[_Unit, Any] = {}
    for key, value in raw.items():
        if key == "streams":
            units |= {("streams", str(entry_stream(entry))): entry for entry in value or []}
        elif key == "penstock":
            units |= {("penstock", name): field for name, field in (value or {}).items()}
        else:
            units[(key, "")] = value
    return units


def _document(units: dict[_Unit, Any]) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    for (key, name), value in units.items():
        if key == "streams":
            raw.setdefault("streams", []).append(value)
        elif key == "penstock":
            raw.setdefault("penstock", {})[name] = value
        else:
            raw[key] = value
    raw.setdefault("streams", [])
    raw["type"] = "GLOBAL" if raw.get("global") is not None else "STREAM"
    return raw
