"""How single values of the pipeline file are written: durations, paths, stream ids, secrets."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, SecretStr, ValidationInfo

from penstock.core.stream import StreamId

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"\A\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*\Z")
_REMOTE = re.compile(r"\A[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_SLOT = re.compile(r"\A[a-z0-9_]{1,63}\Z")
_IDENTIFIER_BYTES_MAX = 63


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and (match := _DURATION.match(value)):
        try:
            return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
        except OverflowError:
            raise ValueError("is longer than Penstock can count") from None
    # A bare number would leave the unit to be guessed.
    raise ValueError("should be a duration with a unit, such as 30s, 15m, 12h or 7d")


def _path(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("should be a path")
    if isinstance(value, str) and _REMOTE.match(value):
        raise ValueError("names an object store, which is not available yet; give a local path")
    directory: Path = (info.context or {}).get("directory", Path.cwd())
    return (directory / Path(value).expanduser()).resolve()


def _stream(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("should be a stream id, schema.table")
    try:
        return str(StreamId.parse(value))
    except ValueError:
        raise ValueError("is not a stream id; write schema.table, where either part may contain *") from None


def _slot(value: Any) -> Any:
    if isinstance(value, str) and not _SLOT.match(value):
        raise ValueError("is not a slot name; Postgres takes 1 to 63 of a-z, 0-9 and _")
    return value


def _identifier(value: Any) -> Any:
    if isinstance(value, str) and not 0 < len(value.encode()) <= _IDENTIFIER_BYTES_MAX:
        raise ValueError(f"should have 1 to {_IDENTIFIER_BYTES_MAX} bytes")
    return value


def _postgres_url(value: Any) -> Any:
    if isinstance(value, str) and not value.startswith(("postgresql://", "postgres://")):
        raise ValueError("should be a URL that begins with postgresql://")
    return value


def _spark_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
LocalPath = Annotated[Path, BeforeValidator(_path)]
StreamPattern = Annotated[str, BeforeValidator(_stream)]
SlotName = Annotated[str, BeforeValidator(_slot)]
Identifier = Annotated[str, BeforeValidator(_identifier)]
PostgresUrl = Annotated[SecretStr, BeforeValidator(_postgres_url)]
SparkValue = Annotated[str, BeforeValidator(_spark_value)]

__all__ = [
    "ByteSize",
    "Duration",
    "Identifier",
    "LocalPath",
    "PostgresUrl",
    "SlotName",
    "SparkValue",
    "StreamPattern",
]
