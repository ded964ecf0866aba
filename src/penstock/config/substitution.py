"""`${VAR}`, `${VAR:-default}` and `${file:/path}` inside the values of the pipeline file.

Substitution happens after YAML is parsed, so no value can change the file's structure. `$${` stands
for a literal `${`. In the user, the password and the parameters of a URL the inserted value is
percent-encoded: a password goes in as it is, whatever characters it holds. Values never appear in
errors; names do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_VARIABLE = re.compile(r"\A([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\Z", re.DOTALL)
_DEPTH_MAX = 32  # a YAML alias may hold itself
_URL = re.compile(r"\A[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_USER_INFO = re.compile(r"\A[a-z][a-z0-9+.-]*://((?:\$\{[^{}]*\}|[^/?#@$]|\$)*)@", re.IGNORECASE)


class SubstitutionError(ValueError):
    """A placeholder that cannot be filled; the message names it."""


def substitute(text: str, environment: Mapping[str, str], directory: Path) -> str:
    """`text` with its placeholders filled; file paths count from `directory`."""

    def fill(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        value = _value(match[1], environment, directory)
        return quote(value, safe="") if _is_url_part(text, match.start()) else value

    return _PLACEHOLDER.sub(fill, text)


def _is_url_part(text: str, position: int) -> bool:
    """Whether `position` lies in a URL's user or password, or begins the value of a parameter."""
    if not _URL.match(text):
        return False
    user_info = _USER_INFO.match(text)
    if user_info and user_info.start(1) <= position < user_info.end(1):
        return True
    return "?" in text[:position] and text[:position].endswith("=")


def has_placeholder(text: str) -> bool:
    return any(match[0] != "$${" for match in _PLACEHOLDER.finditer(text))


def _value(expression: str, environment: Mapping[str, str], directory: Path) -> str:
    if expression.startswith("file:"):
        return _file_value(expression.removeprefix("file:"), directory)
    match = _VARIABLE.match(expression)
    if match is None:
        raise SubstitutionError(
            f"`${{{expression}}}` is not ${{VARIABLE}}, ${{VARIABLE:-default}} or ${{file:path}}"
        )
    name, default = match[1], match[2]
    value = environment.get(name)
    # As in a shell, `:-` also stands in for a variable that is set to nothing.
    if default is not None and not value:
        return default
    if value is None:
        raise SubstitutionError(f"the environment variable {name} is not set")
    return value


def _file_value(name: str, directory: Path) -> str:
    path = directory / Path(name).expanduser()
    try:
        # Secrets mounted as files often end with the newline of the tool that wrote them.
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise SubstitutionError(f"the file {path} cannot be read: {reason}") from None


def substitute_all(
    value: Any, environment: Mapping[str, str], directory: Path, location: tuple[str | int, ...] = ()
) -> tuple[Any, list[tuple[tuple[str | int, ...], str]]]:
    """Fill every string inside `value`; gives the result and what could not be filled, with its location."""
    if isinstance(value, str):
        try:
            return substitute(value, environment, directory), []
        except SubstitutionError as error:
            return value, [(location, str(error))]
    if len(location) > _DEPTH_MAX:
        return value, [(location, "is nested too deeply")]
    items: list[tuple[Any, Any]]
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return value, []
    problems: list[tuple[tuple[str | int, ...], str]] = []
    filled: dict[Any, Any] = {}
    for key, item in items:
        part = key if isinstance(key, int) else str(key)
        filled[key], found = substitute_all(item, environment, directory, (*location, part))
        problems += found
    return (filled if isinstance(value, dict) else list(filled.values())), problems
