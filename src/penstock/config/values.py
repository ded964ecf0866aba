"""How single values of the pipeline file are written: durations, paths, stream ids, secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ByteSize, PlainValidator, SecretStr, ValidationInfo

from penstock.core.held_as import HeldAs
from penstock.core.stream import StreamId
from penstock.core.table_options import PartitionField, SortField

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"\A\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*\Z")
_REMOTE = re.compile(r"\A[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_OBJECT = re.compile(r"\A(s3|gs)://[^/@?#\s]+/[^@?#\s]*[^/@?#\s](\?\S+)?\Z")
_SLOT = re.compile(r"\A[a-z0-9_]{1,63}\Z")
_PLAIN_NUMBER = re.compile(r"\A\d+(?:\.\d+)?\Z")
_HOST_AND_PORT = re.compile(r"\A[^:/\s]+:([0-9]{1,5})\Z")
_TOKEN = re.compile(r"\A[!-~]([ -~]*[!-~])?\Z")
_IDENTIFIER_BYTES_MAX = 63
_PORT_MAX = 65535
#: What is done again and again may not be done without a pause.
_PAUSE_MIN = timedelta(milliseconds=100)


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


def share_of(value: Any) -> float:
    """A part of a whole, as `5%` or 0.05."""
    text = str(value).strip()
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = 0.0
    if isinstance(value, bool) or not 0 < part <= 1:
        raise ValueError("should be a part of a whole, such as 5% or 0.05")
    return part


def _interval(value: Any) -> timedelta | None:
    return None if value is None or value == "never" else _duration(value)


def _pause(value: timedelta) -> timedelta:
    if value < _PAUSE_MIN:
        raise ValueError("should be 100ms at least")
    return value


def _has_port(value: str, port_min: int) -> bool:
    match = _HOST_AND_PORT.match(value)
    return match is not None and port_min <= int(match[1]) <= _PORT_MAX


def _address(value: str) -> str:
    if not _has_port(value, 0):
        raise ValueError("should be host:port with a port up to 65535, such as 127.0.0.1:9780")
    return value


def _socket_or_address(value: str) -> str:
    # Lanes are told the address before anybody listens there: it cannot be any free port.
    if value != "unix" and not _has_port(value, 1):
        raise ValueError("should be `unix`, or host:port with a port from 1 to 65535")
    return value


def _token(value: SecretStr) -> SecretStr:
    """It is sent in a header."""
    if not _TOKEN.match(value.get_secret_value()):
        raise ValueError("should be printable ASCII characters, one at least, without spaces at the ends")
    return value


def _path(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("should be a path")
    if isinstance(value, str) and _REMOTE.match(value):
        raise ValueError("names an object store, which is not available yet; give a local path")
    directory: Path = (info.context or {}).get("directory", Path.cwd())
    return (directory / Path(value).expanduser()).resolve()


def _place(value: Any, info: ValidationInfo) -> str:
    if not isinstance(value, str) or not _REMOTE.match(value):
        return str(_path(value, info))
    if not _OBJECT.match(value):
        raise ValueError(
            "should be a path, s3://bucket/key or gs://bucket/key; credentials are taken from the environment"
        )
    return value


def _stream(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("should be a stream id, schema.table")
    try:
        return str(StreamId.parse(value))
    except ValueError:
        raise ValueError("is not a stream id; write schema.table, where either part may contain *") from None


def _column_type(value: Any) -> str:
    return str(HeldAs.parse(value if isinstance(value, str) else ""))


def _partition(value: Any) -> str:
    return str(PartitionField.parse(value if isinstance(value, str) else ""))


def _sort(value: Any) -> str:
    return str(SortField.parse(value if isinstance(value, str) else ""))


def _cursor(value: Any) -> tuple[str, ...]:
    names = tuple(value.split(":")) if isinstance(value, str) else ()
    if not 1 <= len(names) <= 2 or not all(names) or len(set(names)) != len(names):
        raise ValueError('should be a column, or two: "updated_at:id"')
    return names


def _lookbacks(value: Any) -> tuple[timedelta | Decimal, ...]:
    """For each cursor, a duration or a number."""
    each = value if isinstance(value, list) else [value]
    if not 1 <= len(each) <= 2:
        raise ValueError("should be one value, or a list of one for each cursor")
    return tuple(map(_lookback, each))


def _lookback(value: Any) -> timedelta | Decimal:
    if isinstance(value, str) and _DURATION.match(value):
        return _duration(value)
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    if is_number and _PLAIN_NUMBER.match(str(value)):
        return Decimal(str(value))
    raise ValueError("should be a duration with a unit, such as 15m, or a number that is not negative")


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


def _mongodb_url(value: Any) -> Any:
    if isinstance(value, str) and not value.startswith(("mongodb://", "mongodb+srv://")):
        raise ValueError("should be a URL that begins with mongodb:// or mongodb+srv://")
    return value


def _mysql_url(value: Any) -> Any:
    if isinstance(value, str) and not value.startswith(("mysql://", "mariadb://")):
        raise ValueError("should be a URL that begins with mysql:// or mariadb://")
    return value


def _spark_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Pause = Annotated[Duration, AfterValidator(_pause)]
Address = Annotated[str, AfterValidator(_address)]
SocketOrAddress = Annotated[str, AfterValidator(_socket_or_address)]
Token = Annotated[SecretStr, AfterValidator(_token)]
Interval = Annotated[timedelta | None, BeforeValidator(_interval)]  # None: never
Share = Annotated[float, BeforeValidator(share_of)]
LocalPath = Annotated[Path, BeforeValidator(_path)]
PathOrObject = Annotated[str, BeforeValidator(_place)]
StreamPattern = Annotated[str, BeforeValidator(_stream)]
ColumnType = Annotated[str, BeforeValidator(_column_type)]
PartitionBy = Annotated[str, BeforeValidator(_partition)]
SortBy = Annotated[str, BeforeValidator(_sort)]
CursorColumns = Annotated[tuple[str, ...], BeforeValidator(_cursor)]
Lookbacks = Annotated[tuple[timedelta | Decimal, ...], PlainValidator(_lookbacks)]
SlotName = Annotated[str, BeforeValidator(_slot)]
Identifier = Annotated[str, BeforeValidator(_identifier)]
PostgresUrl = Annotated[SecretStr, BeforeValidator(_postgres_url)]
MysqlUrl = Annotated[SecretStr, BeforeValidator(_mysql_url)]
MongoUrl = Annotated[SecretStr, BeforeValidator(_mongodb_url)]
SparkValue = Annotated[str, BeforeValidator(_spark_value)]
#: The same, of settings among which some are credentials: which ones, their program alone knows.
SecretValue = Annotated[SecretStr, BeforeValidator(_spark_value)]


def revealed(settings: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in settings.items()}


__all__ = [
    "Address",
    "ByteSize",
    "ColumnType",
    "CursorColumns",
    "Duration",
    "Identifier",
    "Interval",
    "LocalPath",
    "Lookbacks",
    "MongoUrl",
    "MysqlUrl",
    "PartitionBy",
    "PathOrObject",
    "Pause",
    "PostgresUrl",
    "SecretValue",
    "Share",
    "SlotName",
    "SocketOrAddress",
    "SortBy",
    "SparkValue",
    "StreamPattern",
    "Token",
    "revealed",
    "share_of",
]
