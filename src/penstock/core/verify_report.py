"""What a comparison came to: of tables or shapes with their source, or of what a lane has sent with the log.

`to_json()` is public, as of other reports.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

#: Of tables and shapes the first three.
DifferenceKind = Literal["missing", "extra", "different", "doubled", "out of order"]
Verdict = Literal["equal", "different", "not compared"]
#: Why a stream was not compared: its mode has nothing to compare, something must be done first, or there is
#: nothing yet to hold against its table, which is nobody's fault and raises no alarm.
NotCompared = Literal["by its mode", "for now", "nothing yet"]
TABLES = "tables"


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """A column in which a row differs. The values are as the source prints them; None: null, or not shown.

    Of a shape, `table` is what the shape has.
    """

    name: str
    source: str | None = None
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that the source has and the table has not, the other way round, or that both have otherwise.

    Of a lane: a record that a change should have made and that is not there, one that no change has made, one
    that says something else than its change, is there too often, or before an earlier one of its key.
    """

    kind: DifferenceKind
    key: dict[str, str | None]
    columns: tuple[ColumnDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifiedStream:
    """One stream, compared at `position`. The table was at `table_position`; the log between was applied.

    `missing`, `extra` and `different` count rows of the buckets that were looked into; `columns` says in how
    many of those rows each column differs. `left_out`: rows that differ and are not among `differences`.

    With a `lane`, it is what that lane has sent: records of changes from `compared_from` up to `position`.
    `source_rows` are those that the change log makes, `table_rows` those that are there.

    Of the lane `shapes` it is one shape, named by its table and handle, and `against` the source: its rows at
    `position`, as read up to the offset `table_position`.
    """

    stream: str
    verdict: Verdict
    reason: str = ""
    why_not: NotCompared | None = None
    position: str | None = None
    table_position: str | None = None
    against: Literal["source", "change log"] = "source"
    compared_from: str | None = None  # of a history: changes before this position were not compared
    source_rows: int = 0
    table_rows: int = 0
    dead_letters: int = 0  # rows of the source that the table cannot hold, or could not complete
    missing: int = 0
    extra: int = 0
    different: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    columns_not_compared: tuple[str, ...] = ()
    buckets: int = 0
    buckets_differing: int = 0
    buckets_looked_into: int = 0
    differences: tuple[Difference, ...] = ()
    left_out: int = 0
    repaired: int | None = None  # rows; None: it was not asked for
    seconds: float = 0.0
    lane: str = ""  # empty: it is the stream's table
    doubled: int = 0
    out_of_order: int = 0
    gone: int = 0  # records that the target has deleted, by age or size
    loaded: int = 0  # records of loaded rows, which are no changes
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called where streams of several lanes stand together."""
        return f"{self.stream} in {self.lane}" if self.lane else self.stream

    @property
    def is_of_records(self) -> bool:
        """Whether it tells of what a lane has sent, and not of rows that are held."""
        return bool(self.lane) and self.against == "change log"

    @property
    def found(self) -> int:
        return self.missing + self.extra + self.different + self.doubled + self.out_of_order

    @property
    def differing_at_least(self) -> int:
        """Rows that differ: those that were found, and one in every bucket that was not looked into."""
        if self.verdict != "different":
            return 0
        return self.found + self.buckets_differing - self.buckets_looked_into

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> VerifiedStream:
        """As it was told, without the rows that were told one by one."""
        known = {each.name for each in fields(cls)} - {"differences"}
        told = {name: value for name, value in document.items() if name in known}
        lists = {name: tuple(told.get(name, ())) for name in ("columns_not_compared", "notes")}
        return cls(**told | lists)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    streams: tuple[VerifiedStream, ...]
    began_at: str
    seconds: float
    sample: float = 1.0  # the part of the keys that was compared
    shows_values: bool = False
    at: str | None = None  # the position of the versions that were compared; None: the newest
    by_schedule: bool = False  # one of those that an instance makes again and again
    of: str = TABLES  # or the lane whose target was compared
    is_all_of_lane: bool = False  # of shapes: there were no others, so what is known of others is past

    @property
    def is_whole(self) -> bool:
        """Whether every row was compared, of tables as they are: what it found equal, is."""
        return self.sample >= 1.0 and self.at is None

    @property
    def equal(self) -> bool:
        """Whether no difference was found, in what could be compared."""
        return all(stream.verdict != "different" for stream in self.streams)

    @property
    def complete(self) -> bool:
        """Whether every stream was compared that could be at all."""
        return all(stream.why_not in (None, "by its mode") for stream in self.streams)

    def without_values(self) -> VerifyReport:
        return replace(self, shows_values=False)

    def to_json(self) -> dict[str, Any]:
        document = {"equal": self.equal, "complete": self.complete, **asdict(self)}
        if not self.shows_values:
            for stream in document["streams"]:
                for difference in stream["differences"]:
                    difference["columns"] = [{"name": each["name"]} for each in difference["columns"]]
        return document
