"""Patterns of LIKE and ILIKE: % is any text, _ any character, a backslash takes the next one as it is.

ILIKE looks past the case of ASCII letters only, as in COLLATE "C".
"""

from __future__ import annotations

import re


def ascii_lower(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def regex(pattern: str) -> str:
    """For Arrow, whose expressions (RE2) take time in proportion to the text, whatever the pattern is."""
    parts = [{"%": ".*", "_": "."}[part] if wild else _quoted(part) for part, wild in _parts(pattern)]
    return r"(?s)\A" + "".join(parts) + r"\z"


def matches(text: str, pattern: str) -> bool:
    """For a pattern per row. Steps back to the last % only: time in proportion to text times pattern."""
    parts = _parts(pattern)
    place = at = 0
    last_any, resume = -1, 0
    while at < len(text):
        part, wild = parts[place] if place < len(parts) else ("", False)
        if wild and part == "%":
            last_any, resume = place, at
            place += 1
        elif (wild and part == "_") or part == text[at]:
            place, at = place + 1, at + 1
        elif last_any >= 0:
            resume += 1
            place, at = last_any + 1, resume
        else:
            return False
    return all(part == ("%", True) for part in parts[place:])


def _parts(pattern: str) -> list[tuple[str, bool]]:
    """The pattern's characters, each with whether it is a wild card."""
    parts = []
    escaped = False
    for character in pattern:
        if escaped or character not in "%_\\":
            parts.append((character, False))
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            parts.append((character, True))
    return parts


def _quoted(character: str) -> str:
    return (
        re.escape(character)
        if character.isascii() and character.isprintable()
        else (rf"\x{{{ord(character):x}}}")
    )
