"""What is shown when somebody asks for it: lanes, dead letters, shapes, the state, the log, comparisons.

Each screen is a function of a request's fields; what it reads is bounded, however long the log and however
many letters. Values of rows are in none of `looks`; those in `values` are reached by who may act, and
written down."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.console import log_screen, row_history, state_screen, verify_screen
from penstock.console.reading import NotReadError, Reading
from penstock.console.table_letters import LETTERS_SHOWN, parquet_letters
from penstock.core.errors import ConfigError, PenstockError
from penstock.core.stream import StreamId
from penstock.core.where.print_sql import without_literals
from penstock.operations import lanes, letters, shapes
from penstock.operations.streams import stream_id

LETTER_BYTES_MAX = 16 << 10
SHAPES_SHOWN = 2000
_NAME_MAX = 300

Fields = dict[str, str]
Screen = Callable[[Fields], dict[str, Any]]


class Screens:
    def __init__(self, config: Config, config_path: Path) -> None:
        self._config = config
        self._config_path = config_path
        self._reading = Reading()

    def looks(self) -> dict[str, Screen]:
        return {
            "lanes": self._lanes,
            "letters": self._letters,
            "letters.lake": lambda fields: self._lake_letters(fields, values=False),
            "letters.lane": lambda fields: self._lane_letters(fields, values=False),
            "shapes": lambda _fields: self._shapes(values=False),
            "state": lambda _fields: state_screen.explained(self._config),
            "state.diff": lambda fields: self._state_difference(fields, values=False),
            "log.steps": lambda fields: log_screen.steps(self._log, _number(fields, "before", 0)),
            "log.step": lambda fields: log_screen.step(self._log, _number(fields, "step")),
            "log.schemas": lambda fields: log_screen.schemas(self._log, _stream(fields)),
            "verify": lambda _fields: verify_screen.runs(self._config),
            "verify.run": lambda fields: verify_screen.run(self._config.state, _text(fields, "run")),
        }

    def values(self) -> dict[str, Screen]:
        return {
            "letters.lake": lambda fields: self._lake_letters(fields, values=True),
            "letters.lane": lambda fields: self._lane_letters(fields, values=True),
            "shapes": lambda _fields: self._shapes(values=True),
            "state": lambda _fields: state_screen.explained(self._config, values=True),
            "state.diff": lambda fields: self._state_difference(fields, values=True),
            "log.key": lambda fields: row_history.changes_of_key(
                self._log, _stream(fields), _text(fields, "key")
            ),
            "verify.rows": lambda fields: verify_screen.rows(
                self._config.state, _text(fields, "run"), _text(fields, "stream")
            ),
        }

    def _state_difference(self, fields: Fields, *, values: bool) -> dict[str, Any]:
        before, after = _number(fields, "from"), _number(fields, "to")
        return state_screen.difference(self._config.state, before, after, values=values)

    @property
    def _log(self) -> Path:
        return self._config.state / "log"

    def _lanes(self, _fields: Fields) -> dict[str, Any]:
        try:
            found = lanes.standings(self._config)
        except PenstockError as error:
            return {"lanes": [], "problem": str(error)}
        return {"lanes": [asdict(each) | {"position": str(each.position or "")} for each in found]}

    def _letters(self, _fields: Fields) -> dict[str, Any]:
        return {
            "lanes": [
                {"lane": lane, **each}
                for lane in self._config.lanes.streams
                for each in letters.summary(self._config, lane)
            ]
        }

    def _lane_letters(self, fields: Fields, *, values: bool) -> dict[str, Any]:
        lane, letter, skip = _text(fields, "lane"), fields.get("letter"), _number(fields, "skip", 0)
        total, shown = letters.shown(
            self._config,
            lane,
            fields.get("stream"),
            values=values,
            limit=LETTERS_SHOWN,
            letter=None if letter is None else _number(fields, "letter"),
            text=_filter(fields),
            skip=skip,
            bytes_max=LETTER_BYTES_MAX,
        )
        return {"lane": lane, "dead_letters": total, "shown": shown, "more": skip + len(shown) < total}

    def _lake_letters(self, fields: Fields, *, values: bool) -> dict[str, Any]:
        stream = _stream(fields)
        if self._config.destination.type == "parquet":
            return parquet_letters(
                self._config.destination.directory,
                stream,
                values=values,
                text=_filter(fields),
                skip=_number(fields, "skip", 0),
            )
        found = self._by_command(
            ["dlq", "show", "--limit", str(LETTERS_SHOWN), *(["--values"] * values)], stream
        )
        text = _filter(fields).lower()
        shown = [each for each in found.get("shown", []) if text in str(each.get("why", "")).lower()]
        return found | {"shown": shown, "only_newest": LETTERS_SHOWN}

    def _by_command(self, arguments: list[str], stream: StreamId) -> dict[str, Any]:
        """In a process of its own: what reads Iceberg tables needs Java."""
        command = _command(self._config_path, [*arguments, "--", str(stream)])
        try:
            code, said_all = self._reading.run(command)
            answer: dict[str, Any] = json.loads(said_all)
        except (NotReadError, ValueError) as error:
            why = f": {error}" if isinstance(error, NotReadError) else ""
            raise ConfigError(
                f"The dead letters could not be read{why}.", remedy=f"Try `penstock dlq show {stream}`."
            ) from error
        if code:
            said = answer.get("error", {})
            raise ConfigError(str(said.get("message", "They could not be read.")), stream=str(stream))
        return answer

    def _shapes(self, *, values: bool) -> dict[str, Any]:
        """What conditions compare with is mostly in rows, too."""
        if self._config.lanes.shapes is None:
            return {"shapes": [], "total": 0, "problem": "This pipeline has no `lanes.shapes`."}
        try:
            found = shapes.shapes(self._config.state)
        except PenstockError as error:
            return {"shapes": [], "total": 0, "problem": error.message}
        shown = found[:SHAPES_SHOWN]
        if not values:
            shown = [each | {"where": each["where"] and without_literals(each["where"])} for each in shown]
        return {"shapes": shown, "total": len(found)}


def _command(config_path: Path, arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "penstock", "-c", str(config_path), "--json", *arguments]


def _text(fields: Fields, name: str) -> str:
    value = fields.get(name, "")
    if not 0 < len(value) <= _NAME_MAX:
        raise ConfigError(f"`{name}` is missing.")
    return value


def _filter(fields: Fields) -> str:
    return fields.get("text", "")[:_NAME_MAX].strip()


def _stream(fields: Fields) -> StreamId:
    return stream_id(_text(fields, "stream"))


def _number(fields: Fields, name: str, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if value is None or not value.isascii() or not value.isdigit() or len(value) > 18:
        raise ConfigError(f"`{name}` should be a number.")
    return int(value)
