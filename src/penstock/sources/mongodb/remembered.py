"""The fields that collections were found to have, kept over runs: a file of the pipeline's own.

In the layout `fields` the columns of a collection come from a sample, and another sample may show others. A
table cannot have other columns each time that it is looked at, so the first sample counts: what it missed is
in `_rest`, until a change shows it. Capture then adds the field here, behind all others (`add_later`), and
writes the change with its column. So the columns of a collection only ever become more, and a column stays
what it was; a collection that was dropped and made anew is another one.

What is here is durable before the first row has it: whoever reads on after a crash has all columns that any
row of the log has, and it makes no difference if there is one that none has yet.

Capture and the lake are processes of their own that look at the same collection, maybe at the same time. The
file is read again under a lock before it is written, so one sample is the first, for both of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.errors import StateError
from penstock.file_lock import held
from penstock.sources.mongodb.fields import Column, Form

_FORMAT_VERSION = 2
_WITHOUT_LATER_VERSION = 1  # what nothing was added to is as earlier versions wrote it


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

    def add_later(self, key: str, found: Sequence[Column], later_max: int) -> tuple[Column, ...]:
        """What is remembered from now on, with those of `found` that are new, as many as there is room for;
        nothing of a collection of which nothing was."""
        with self._changing() as known:
            if key not in known:
                return ()
            columns = _columns(known[key])
            names = {column.name for column in columns}
            new = [column for column in found if column.name not in names]
            room = max(0, later_max - sum(column.later for column in columns))
            columns += tuple(new[:room])
            known[key] = _noted(columns)
        return columns

    def _added(self, key: str, fields: tuple[Column, ...]) -> tuple[Column, ...]:
        """What is remembered from now on: what somebody else has seen first, if somebody has."""
        with self._changing() as known:
            return _columns(known.setdefault(key, _noted(fields)))

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """What is remembered, to be changed by nobody else meanwhile; durable afterwards."""
        with held(self._path.with_name(f"{self._path.name}.lock"), math.inf):
            known = self._read()
            before = dict(known)
            yield known
            if known != before:
                has_later = any("later" in noted for noted in known.values())
                version = _FORMAT_VERSION if has_later else _WITHOUT_LATER_VERSION
                content = {"format_version": version, "collections": known}
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


def _columns(noted: dict[str, Any]) -> tuple[Column, ...]:
    return (
        *(Column(name, Form(form), scale) for name, form, scale in noted["fields"]),
        *(Column(name, Form(form), scale, later=True) for name, form, scale in noted.get("later", ())),
    )


def _noted(columns: Sequence[Column]) -> dict[str, Any]:
    fields, later = (
        [[each.name, str(each.form), each.scale] for each in columns if each.later is is_later]
        for is_later in (False, True)
    )
    return {"fields": fields, "later": later} if later else {"fields": fields}
