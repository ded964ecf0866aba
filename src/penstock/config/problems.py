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
    reported: Location = tuple(part for part in details["loc"] if part != "[key]")
    location, _ = _place(model, reported)
    kind = details["type"]
    if kind == "extra_forbidden":
        return location, _unknown_key(str(location[-1]), _keys_at(model, reported[:-1]))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return (*location, details["ctx"]["discriminator"].strip("'")), _unknown_kind(details)
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


def _unknown_kind(details: Any) -> str:
    """Of a mapping that may be of several kinds."""
    if "tag" not in details["ctx"]:
        return "is missing."
    return f"`{details['ctx']['tag']}` is not known; known are {details['ctx']['expected_tags']}."


def _keys_at(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that the mapping at `location` may have."""
    _, found = _place(model, location)
    return sorted(field.alias or name for name, field in found.model_fields.items())


def _place(model: type[BaseModel], location: Location) -> tuple[Location, type[BaseModel]]:
    """Where that is in the file, and of which model the mapping is.

    Where a mapping may be of several kinds, pydantic has the kind in the location: the file has not.
    """
    place: list[int | str] = []
    kinds: dict[object, type[BaseModel]] = {}
    for part in location:
        if kinds:
            model, kinds = kinds[part], {}
            continue
        place.append(part)
        by_key = {field.alias or name: field for name, field in model.model_fields.items()}
        if isinstance(part, str) and part in by_key:
            models = _models_in(by_key[part].annotation)
            if isinstance(key := by_key[part].discriminator, str):
                kinds = {kind: each for each in models for kind in _kinds(each, key)}
            elif models:
                model = models[0]
    return tuple(place), model


def _kinds(model: type[BaseModel], key: str) -> tuple[Any, ...]:
    return get_args(model.model_fields[key].annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _models_in(inner)]


def _dotted(location: Location) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"
