"""Turns what is wrong with a pipeline file into one error that names every place.

A problem is a location and a sentence. Pydantic's own exception is not chained: it quotes the input,
and the input may be a secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from penstock.config.document import Document, Location
from penstock.core.errors import ConfigError

Problem = tuple[Location, str]


def config_error(document: Document, problems: Sequence[Problem], remedy: str = "") -> ConfigError:
    placed = sorted((document.line(location), _dotted(location), sentence) for location, sentence in problems)
    lines = [f"line {line}: {place}: {sentence}" for line, place, sentence in placed]
    count = "one problem" if len(lines) == 1 else f"{len(lines)} problems"
    return ConfigError(
        f"{document.path} has {count}.",
        detail="\n".join(lines),
        remedy=remedy
        or "Change the file at the line named above; docs/reference/configuration.md lists every key.",
    )


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    return [_problem(details, model) for details in error.errors(include_url=False, include_input=False)]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to `word`, ignoring case, if one is close at all."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def _problem(details: Any, model: type[BaseModel]) -> Problem:
    location: Location = tuple(part for part in details["loc"] if part != "[key]")
    kind = details["type"]
    if kind == "extra_forbidden":
        return location, _unknown_key(str(location[-1]), _keys_at(model, location[:-1]))
    if kind == "missing":
        return location, "is missing."
    if kind == "value_error":
        return location, f"{details['ctx']['error']}."
    if kind == "model_type":
        return location, "should be a mapping of keys to values."
    message = str(details["msg"]).replace("Input should be", "should be")
    return location, f"{message}."


def _unknown_key(key: str, known: Sequence[str]) -> str:
    close = nearest(key, known)
    hint = f"did you mean `{close}`?" if close else f"known here are {', '.join(known)}."
    return f"unknown key `{key}`; {hint}"


def _keys_at(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that the mapping at `location` may have."""
    for part in location:
        if isinstance(part, str):
            by_key = {field.alias or name: field for name, field in model.model_fields.items()}
            model = _model_in(by_key[part].annotation) or model
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)


def _dotted(location: Location) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"
