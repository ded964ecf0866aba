"""What a request is for, in one spelling, before anybody decides anything by it.

A route is a tuple of names. Whatever spelling a path comes in, percent-encoded, with doubled slashes or
dots, it is either that tuple or no route: so no spelling reaches a handler past the question who may use
it."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote_to_bytes

TARGET_CHARACTERS_MAX = 4096
FIELDS_MAX = 32
_ALLOWED = re.compile(r"\A/[!-~]*\Z")
_NAME = re.compile(r"\A[A-Za-z0-9_.-]{1,128}\Z")

Route = tuple[str, ...]


class NoRouteError(Exception):
    """The target is none that anybody could mean."""


def route_of(target: str) -> tuple[Route, dict[str, str]]:
    """The route and the query's fields; of a field that comes twice, neither is believed."""
    if len(target) > TARGET_CHARACTERS_MAX or not _ALLOWED.match(target) or target.startswith("//"):
        raise NoRouteError
    path, _, query = target.partition("?")
    if "#" in target:
        raise NoRouteError
    try:
        decoded = unquote_to_bytes(path).decode("ascii")
    except UnicodeDecodeError:
        raise NoRouteError from None
    names = decoded.split("/")[1:]
    if names and names[-1] == "":
        names.pop()
    # A second decoding, a backslash or a dot name would mean another path to somebody behind or before us.
    if not all(_NAME.match(name) and name not in (".", "..") for name in names):
        raise NoRouteError
    return tuple(names), _fields(query)


def _fields(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise NoRouteError from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise NoRouteError
    return fields
