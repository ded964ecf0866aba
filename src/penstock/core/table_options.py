"""What the pipeline file may choose for one Iceberg table: `iceberg:` of a stream.

`partition_by: ["day(created_at)", "bucket(16, id)", "region"]` and `sort_by: ["created_at desc", "id"]` name
the table's columns, after `rename`. A name with anything but letters, digits and `_ . - $` in it stands in
double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

Transform = Literal["identity", "bucket", "truncate", "year", "month", "day", "hour"]
TIME_TRANSFORMS: tuple[Transform, ...] = ("year", "month", "day", "hour")
WIDTH_MAX = 2**31 - 1

_NAME = r'(?P<name>[\w.$-]+|"(?:[^"]|"")+")'
_PLAIN = re.compile(_NAME)
_CALL = re.compile(rf"(?P<call>\w+)\s*\(\s*(?:(?P<width>\d+)\s*,\s*)?{_NAME}\s*\)")
_SORT = re.compile(
    rf"{_NAME}(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A column, or what a transform makes of it; rows of equal values lie in files of their own."""

    column: str
    transform: Transform = "identity"
    width: int = 0  # how many buckets, or to which length or multiple values are cut

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """ValueError says what may be written."""
        if match := _PLAIN.fullmatch(text.strip()):
            return cls(_unquoted(match["name"]))
        match = _CALL.fullmatch(text.strip())
        call = match["call"].lower() if match else ""
        for transform in get_args(Transform)[1:]:
            if match and call == transform and bool(match["width"]) == (call in ("bucket", "truncate")):
                width = int(match["width"] or 1)
                if not 1 <= width <= WIDTH_MAX:
                    raise ValueError(f"the number of {call} should be from 1 to {WIDTH_MAX}")
                return cls(_unquoted(match["name"]), transform, width if match["width"] else 0)
        raise ValueError(
            "should be a column, year(column), month(column), day(column), hour(column), "
            "bucket(16, column) or truncate(4, column)"
        )

    def __str__(self) -> str:
        if self.transform == "identity":
            return _quoted(self.column)
        width = f"{self.width}, " if self.width else ""
        return f"{self.transform}({width}{_quoted(self.column)})"

    @property
    def iceberg_transform(self) -> str:
        """As Iceberg prints it."""
        return f"{self.transform}[{self.width}]" if self.width else self.transform


@dataclass(frozen=True, slots=True)
class SortField:
    """A column by whose values the rows of a file are in order."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    @classmethod
    def parse(cls, text: str) -> SortField:
        """ValueError says what may be written. Nulls are first unless the order descends, as in Iceberg."""
        match = _SORT.fullmatch(text.strip())
        if match is None:
            raise ValueError('should be a column, "column desc" or "column asc nulls last"')
        descending = (match["direction"] or "").lower() == "desc"
        nulls = (match["nulls"] or ("last" if descending else "first")).lower()
        return cls(_unquoted(match["name"]), descending, nulls == "first")

    def __str__(self) -> str:
        direction = "desc" if self.descending else "asc"
        return f"{_quoted(self.column)} {direction} nulls {'first' if self.nulls_first else 'last'}"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the file says of a table; None: nothing, and the table keeps what it has."""

    partition_by: tuple[PartitionField, ...] | None = None
    sort_by: tuple[SortField, ...] | None = None
    location: Path | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    format_version: int | None = None


NO_OPTIONS = TableOptions()


def check_partitions(fields: Sequence[PartitionField]) -> None:
    """ValueError if two fields say the same of a column, or one of them says all that another does."""
    seen: set[tuple[str, str]] = set()
    for each in fields:
        kind = "time" if each.transform in TIME_TRANSFORMS else each.iceberg_transform
        if (each.column, kind) in seen:
            more = " by more than one of year, month, day and hour" if kind == "time" else f" by {each} twice"
            raise ValueError(f"partitions {each.column}{more}")
        seen.add((each.column, kind))


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _quoted(name: str) -> str:
    if _PLAIN.fullmatch(name) and not name.startswith('"'):
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
