"""Names that schemas of others allow: letters, digits and underscores, no digit first."""

from __future__ import annotations

import re
from collections.abc import Iterable

_OTHERS = re.compile(r"[^A-Za-z0-9_]")


def valid_name(name: str) -> str:
    """With an underscore for each letter that is not allowed, as Debezium has it."""
    replaced = _OTHERS.sub("_", name) or "_"
    return f"_{replaced}" if replaced[0].isdigit() else replaced


def distinct_names(names: Iterable[str]) -> dict[str, str]:
    """A valid name for each; where two would be the same, the later one has a number behind it."""
    found: dict[str, str] = {}
    for name in names:
        plain = chosen = valid_name(name)
        number = 2
        while chosen in found.values():
            chosen, number = f"{plain}_{number}", number + 1
        found[name] = chosen
    return found
