"""The fields that collections were found to have, kept over runs: a file of the pipeline's own.

In the layout `fields` the columns of a collection come from a sample, and another sample may show others. A
table cannot have other columns each time that it is looked at, so the first sample counts: what it missed is
in `_rest`, of every row and for good. A collection that was dropped and made anew is another one.

Capture and the lake are processes of their own that look at the same collection, maybe at the same time. The
file is read again under a lock before it is written, so one sample is the first, for both of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.errors import StateError
from penstock.file_lock import held
from penstock.sources.mongodb.fields import Column, Form

_FORMAT_VERSION = 1


class RememberedFields:
    """By a key that is a collection's own for as long as it lives."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, key: str, sample: Callable[[], tuple[Column, ...]]) -> tuple[Column, ...]:
        """What is remembered; else what `sample` shows, which is remembered if it shows anything."""
        known = self._read()
        if key in known:
            return _columns(known[key])
        found = sample()
        return self._added(key, found) if found else found

    def _added(self, key: str, fields: tuple[Column, ...]) -> tuple[Column, ...]:
        """What is remembered from now on: what somebody else has seen first, if somebody has."""
        noted = {"fields": [[each.name, str(each.form), each.scale] for each in fields]}
        with held(self._path.with_name(f"{self._path.name}.lock"), math.inf):
            known = self._read()
            if key in known:
                return _columns(known[key])
            content = {"format_version": _FORMAT_VERSION, "collections": {**known, key: noted}}
            durable.replace(self._path, durable.to_json_bytes(content))
        return fields

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_bytes())
            if content["format_version"] > _FORMAT_VERSION:
                raise StateError(
                    f"{self._path} was written by a newer Penstock.",
                    remedy="Install that version of Penstock, or a later one.",
                )
            return dict(content["collections"])
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{self._path} cannot be read: it has the fields that collections were found to have.",
                remedy="Restore it from a backup; without it, `penstock resync` the streams.",
            ) from error


def _columns(noted: dict[str, Any]) -> tuple[Column, ...]:
    return tuple(Column(name, Form(form), scale) for name, form, scale in noted["fields"])
