"""The fields that collections were found to have, kept over runs: a file of the pipeline's own.

In the layout `fields` the columns of a collection come from a sample, and another sample may show others. A
table cannot have other columns each time that it is looked at, so the first sample counts: what it missed is
in `_rest`, of every row and for good. A collection that was dropped and made anew is another one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.errors import StateError
from penstock.sources.mongodb.fields import Column, Form

_FORMAT_VERSION = 1
_writing = threading.Lock()


class RememberedFields:
    """By a key that is a collection's own for as long as it lives."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, key: str, sample: Callable[[], tuple[Column, ...]]) -> tuple[Column, ...]:
        """What is remembered; else what `sample` shows, which is remembered if it shows anything."""
        known = self._read()
        if key in known:
            return tuple(Column(name, Form(form), scale) for name, form, scale in known[key]["fields"])
        found = sample()
        if found:
            self._add(key, found)
        return found

    def _add(self, key: str, fields: tuple[Column, ...]) -> None:
        noted = {"fields": [[each.name, str(each.form), each.scale] for each in fields]}
        with _writing:
            collections = {**self._read(), key: noted}
            content = {"format_version": _FORMAT_VERSION, "collections": collections}
            durable.replace(self._path, durable.to_json_bytes(content))

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
