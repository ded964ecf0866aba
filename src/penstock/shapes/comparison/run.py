"""One comparison of shapes with their SELECTs, one shape after the other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import psycopg

from penstock.core.errors import ConfigError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.verify_report import NotCompared, VerifiedStream, VerifyReport
from penstock.shapes.admin import is_named
from penstock.shapes.comparison.at_cuts import ComparisonAtCuts, Judged, NoCutError, Waits
from penstock.shapes.comparison.held import BothSides
from penstock.shapes.comparison.reading import (
    BehindError,
    NotReadyError,
    ServedShape,
    ShapeGoneError,
    shapes_there,
)
from penstock.shapes.comparison.visible import MixedError, Visible, reached_at
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.rendering.row_lines import RowLines
from penstock.shapes.settings import SHAPES_LANE
from penstock.shapes.shape import SnapshotPoint, SnapshotProblem
from penstock.shapes.source.present import PresentTables
from penstock.shapes.source.problems import problem_of, schema_changed
from penstock.shapes.source.row_reader import consistent, read_lines
from penstock.sources.postgres.connection import Connection, connect

_TRIES_MAX = 3
_PHASE = "verify"


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """`shapes`: handles and tables, none means all. `limit`: how many differences of a shape are told one by
    one; `show_values`: with what both sides hold. So long the service may take to get to the source's
    position, a lock of a table to be had, and the SELECT to give its first row."""

    shapes: tuple[str, ...] = ()
    limit: int = 20
    show_values: bool = False
    behind_s: float = 120.0
    lock_s: float = 30.0
    first_data_s: float = 600.0


def compare_shapes(url: str, admin: Path, listener: ProgressListener, options: ShapeOptions) -> VerifyReport:
    """The shapes of the service that answers at `admin`, with the source at `url`. Nothing is changed."""
    began, began_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    there = _chosen(shapes_there(admin), options.shapes)
    comparison = _Comparison(url, admin, listener, options)
    streams = [comparison.compare(each) for each in there]
    return VerifyReport(
        tuple(streams),
        began_at,
        round(time.monotonic() - began, 3),
        shows_values=options.show_values,
        of=SHAPES_LANE,
        is_all_of_lane=not options.shapes,
    )


def _chosen(there: Sequence[dict[str, Any]], names: Sequence[str]) -> list[_There]:
    found = [
        _There(each["handle"], each["state"], ShapeDefinition.from_json(each["definition"])) for each in there
    ]
    for name in names:
        if not any(each.is_named(name) for each in found):
            raise ConfigError(
                f"There is no shape with the handle, and none of the table, {name}.",
                remedy="`penstock shapes list` shows those there are.",
            )
    chosen = [each for each in found if not names or any(each.is_named(name) for name in names)]
    return sorted(chosen, key=lambda each: each.name)


@dataclass(frozen=True, slots=True)
class _There:
    """A shape that the service has."""

    handle: str
    state: str
    definition: ShapeDefinition

    @property
    def name(self) -> str:
        return f"{self.definition.table} {self.handle}"

    def is_named(self, name: str) -> bool:
        return name == self.handle or is_named(self.definition.table, name)


class _Comparison:
    def __init__(self, url: str, admin: Path, listener: ProgressListener, options: ShapeOptions) -> None:
        self._url = url
        self._admin = admin
        self._listener = listener
        self._options = options
        self._tables = PresentTables()

    def compare(self, shape: _There) -> VerifiedStream:
        began = time.monotonic()
        if shape.definition.log == "changes_only":
            return _not_compared(shape, "it has no first rows (log=changes_only)", "by its mode")
        if shape.state != "ready":
            return _not_compared(shape, "its first rows are still being read", "nothing yet")
        self._listener.stream_started(shape.name, _PHASE, None)
        told = self._compared(shape)
        self._listener.stream_finished(shape.name, _PHASE, told.source_rows)
        return replace(told, seconds=round(time.monotonic() - began, 3))

    def _compared(self, shape: _There) -> VerifiedStream:
        for _ in range(_TRIES_MAX):
            try:
                with tempfile.TemporaryDirectory(prefix="penstock-verify-") as directory:
                    return self._compare(shape, Path(directory) / "sides")
            except MixedError:
                continue  # with a later snapshot, which shows more
            except NotReadyError:
                reason = "its first rows, or what came before a start, are still being read"
                return _not_compared(shape, reason, "nothing yet")
            except NoCutError:
                reason = (
                    "each snapshot showed transactions of its tables in another order than they committed"
                )
                return _not_compared(shape, f"{reason}; compare it when less is written", "for now")
            except ShapeGoneError:
                return _not_compared(
                    shape, "it went while it was compared; its clients fetch anew", "nothing yet"
                )
            except BehindError:
                waited = f"{self._options.behind_s:.0f} s"
                reason = f"the live lane did not get to the source's position within {waited}"
                return _not_compared(shape, f"{reason}; `penstock status` says what it waits for", "for now")
            except SnapshotProblem as problem:
                return _not_compared(shape, problem.message.rstrip("."), "for now")
        reason = "its log was compacted again and again while it was read; compare it at another time"
        return _not_compared(shape, reason, "for now")

    def _compare(self, shape: _There, path: Path) -> VerifiedStream:
        if shape.definition.has_subqueries:
            return self._compare_at_cuts(shape, path)
        with closing(BothSides(path, shape.definition)) as sides:
            point = self._read_source(shape.definition, sides)
            served = ServedShape(self._admin, shape.handle)
            for items in served.first_rows():
                sides.put_first_rows(items)
            visible = Visible(point)
            for items in served.changes(reached_at(point.lsn), self._options.behind_s):
                sides.apply(items, visible)
            counted = sides.counted()
            found = sides.differences(self._options.limit, show_values=self._options.show_values)
        return _told(shape, Judged(point.lsn, served.offset, *counted, found))

    def _compare_at_cuts(self, shape: _There, path: Path) -> VerifiedStream:
        options = self._options
        waits = Waits(options.behind_s, options.lock_s, options.first_data_s)
        served = ServedShape(self._admin, shape.handle)
        comparison = ComparisonAtCuts(self._url, served, shape.definition, self._tables, waits)
        return _told(shape, comparison.compare(path, options.limit, show_values=options.show_values))

    def _read_source(self, definition: ShapeDefinition, sides: BothSides) -> SnapshotPoint:
        """What the SELECT gives. A `SnapshotProblem` if it cannot be read, or is of another table by now."""
        try:
            with closing(connect(self._url, application_name="penstock verify")) as connection:
                return self._read_under(connection, definition, sides)
        except psycopg.Error as error:
            raise problem_of(error, definition.table) from error

    def _read_under(
        self, connection: Connection, definition: ShapeDefinition, sides: BothSides
    ) -> SnapshotPoint:
        options = self._options
        with consistent(connection, [definition.card], options.lock_s) as moment:
            present = self._tables.definition(connection, definition, moment.versions)
            if present.columns != definition.columns:
                raise schema_changed(definition.table)
            for lines in read_lines(connection, RowLines(definition), options.first_data_s):
                sides.put_source(orjson.loads(b"[" + b",".join(lines.content.splitlines()) + b"]"))
            return moment.point


def _told(shape: _There, judged: Judged) -> VerifiedStream:
    found = judged.found
    notes: tuple[str, ...] = ()
    if judged.looks > 1:
        notes = (f"some rows were just coming or going: looked at {judged.looks} times, counted at the last",)
    if judged.open:
        concern = "1 row differs" if judged.open == 1 else f"{judged.open:,} rows differ"
        open_rows = f"{concern} with values that came into its subqueries, or went, at each look at them"
        if not found.counts:
            return _not_compared(shape, f"{open_rows}; compare it when less is written", "for now")
        notes = (*notes, open_rows)
    told = found.told()
    return VerifiedStream(
        shape.name,
        "different" if found.counts else "equal",
        position=str(Lsn(judged.lsn)),
        table_position=str(judged.offset),
        source_rows=judged.source_rows,
        table_rows=judged.shape_rows,
        missing=found.counts["missing"],
        extra=found.counts["extra"],
        different=found.counts["different"],
        columns=dict(found.columns),
        columns_not_compared=tuple(sorted(found.not_compared)),
        differences=told,
        left_out=found.counts.total() - len(told),
        lane=SHAPES_LANE,
        notes=notes,
    )


def _not_compared(shape: _There, reason: str, why: NotCompared) -> VerifiedStream:
    return VerifiedStream(shape.name, "not compared", reason, why, lane=SHAPES_LANE)
