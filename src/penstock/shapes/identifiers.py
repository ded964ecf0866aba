"""Names of tables and columns as clients write them: SQL's identifiers, and nothing else.

An identifier is bare (letters, digits, `_`, `$`; folded to lower case) or in double quotes (as it is, a quote
doubled). The whole text must be identifiers and separators, so that what is asked of the source later are
names that were read here and are quoted anew, never the client's text.
"""

from __future__ import annotations

import re

from penstock.core.stream import StreamId

BYTES_MAX = 63  # of one name: Postgres cuts longer ones, and another table might be meant
_QUOTED = re.compile(r'"((?:[^"\0]|"")*)"')
_BARE = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*")
_FOLD = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


class IdentifierError(ValueError):
    """What is wrong, as the client gets it."""


def parse_table(text: str) -> StreamId:
    """`name` or `schema.name`; without a schema, `public`."""
    names = _identifiers(text, ".")
    if len(names) > 2:
        raise IdentifierError("Invalid table name: expected a name, or a schema and a name")
    return StreamId(*names) if len(names) == 2 else StreamId("public", names[0])


def parse_columns(text: str) -> list[str]:
    """Names separated by commas, each once, in the order written."""
    return list(dict.fromkeys(_identifiers(text, ",")))


def _identifiers(text: str, separator: str) -> list[str]:
    names: list[str] = []
    position = 0
    while True:
        name, position = _identifier(text, position, separator)
        names.append(name)
        if position == len(text):
            return names
        position += 1


def _identifier(text: str, start: int, separator: str) -> tuple[str, int]:
    """The name that begins at `start`, and where it ends: at a separator, or at the end."""
    quoted = _QUOTED.match(text, start)
    if quoted is not None:
        name, end = quoted[1].replace('""', '"'), quoted.end()
        if end < len(text) and text[end] != separator:
            raise IdentifierError(f"Invalid identifier with unescaped quote: {_shown(text[start:])}")
    else:
        end = text.find(separator, start)
        end = len(text) if end == -1 else end
        name = text[start:end]
        if name and not _BARE.fullmatch(name):
            raise IdentifierError(f"Invalid unquoted identifier contains special characters: {_shown(name)}")
        name = name.translate(_FOLD)
    if not name:
        raise IdentifierError("Invalid zero-length delimited identifier")
    if len(name.encode("utf-8", "surrogatepass")) > BYTES_MAX:
        raise IdentifierError(f"Invalid identifier: longer than {BYTES_MAX} bytes")
    return name, end


def _shown(text: str) -> str:
    return text if len(text) <= BYTES_MAX else text[:BYTES_MAX] + "…"
