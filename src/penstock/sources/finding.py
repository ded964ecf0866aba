"""What a check says about one prerequisite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from penstock.core.errors import PenstockError, SourceError
from penstock.core.stream import StreamId
from penstock.core.table_options import NO_OPTIONS, TableOptions
from penstock.sources.cursor import CursorChoice

Level = Literal["ok", "warning", "error"]
Asked = TypeVar("Asked")
_LOG_MODES = ("cdc", "strict_cdc")
_APPEND_COLUMNS = frozenset({"_op", "_tx", "_op_index", "_commit_ts", "_unchanged", "_deleted_at"})
_SOFT_DELETE_COLUMNS = frozenset({"_deleted_at"})
#: Columns that a table may have beside its source's.
COLUMNS_OF_OURS = _APPEND_COLUMNS | _SOFT_DELETE_COLUMNS


@dataclass(frozen=True, slots=True)
class Finding:
    """One prerequisite, met or not. `remedy` is there whenever the level is not ok."""

    name: str
    level: Level
    message: str
    remedy: str = ""
    stream: str | None = None
    exit_code: int = SourceError.exit_code  # what a sync would end with
    is_waited_for: bool = False  # an error that lets the stream stand still, and the sync goes on with others

    @classmethod
    def of_error(cls, name: str, error: PenstockError, stream: str | None = None) -> Finding:
        message = f"{error.message} {error.detail}".strip()
        return cls(name, "error", message, error.remedy, stream or error.stream, error.exit_code)

    def to_json(self) -> dict[str, str]:
        fields = {
            "name": self.name,
            "level": self.level,
            "message": self.message,
            "remedy": self.remedy,
            "stream": self.stream or "",
        }
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class StreamNeed:
    """What the pipeline file asks of one stream, as far as the source must allow it."""

    stream: StreamId  # may be a pattern
    mode: str = "cdc"  # cdc, strict_cdc, full_refresh, incremental
    write: str = "upsert"  # upsert, append
    replica_identity: str = "default"  # default, full
    deletes: str = "hard"  # hard, soft
    rename: Mapping[str, str] = field(default_factory=dict)  # source name → name at the destination
    columns: tuple[str, ...] = ()  # that the table holds; empty: all
    where: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)  # source name → what it is to be held as
    by_pattern: bool = False  # the file does not name this stream itself; not all it says concerns each table

    cursor: CursorChoice | None = None  # of an incremental stream
    options: TableOptions = NO_OPTIONS  # of its table
    at_replica: bool = False  # the table is read at a standby

    @property
    def reads_log(self) -> bool:
        return self.mode in _LOG_MODES

    @property
    def added_columns(self) -> frozenset[str]:
        """Columns of ours in the stream's table: no column of the source may be called so."""
        of_appends = _APPEND_COLUMNS if self.write == "append" else frozenset()
        return of_appends | (_SOFT_DELETE_COLUMNS if self.deletes == "soft" else frozenset())


def findings_of(
    steps: Sequence[tuple[str, Callable[[Asked], Iterable[Finding]]]], asked: Asked
) -> list[Finding]:
    """What all steps find; one that fails is a finding under its name, and the others go on."""
    findings: list[Finding] = []
    for name, step in steps:
        try:
            findings += step(asked)
        except PenstockError as error:
            findings.append(Finding.of_error(name, error))
    return findings
