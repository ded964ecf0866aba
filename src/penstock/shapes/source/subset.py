"""Subsets: rows of a shape by a condition, an order and a limit of the request's own, read from the source.

The condition is checked like a shape's, though without subqueries; the order takes columns only. What only
Postgres finds out, such as a label that an enumeration does not have, is told as one sentence. An answer is
read in a transaction of its own and says what that showed, so that a client can tell which changes of the
shape's log it already has.

Rows are read whole before the first is sent, so that no client holds a transaction open (`spool`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from penstock.core.where import Condition, WhereError
from penstock.core.where.kinds import Kind, kind_of
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.rendering.row_lines import RowLines, visibility
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape, SnapshotPoint
from penstock.shapes.source.catalog import TableCard
from penstock.shapes.source.present import PresentTables
from penstock.shapes.source.problems import problem_of
from penstock.shapes.source.query_pool import QueryPool
from penstock.shapes.source.row_reader import consistent, read_lines
from penstock.shapes.source.snapshot import OnChanged, RowHeaders
from penstock.shapes.source.spool import Spool, Spools
from penstock.shapes.source.sql import condition_of, tables_read
from penstock.sources.postgres.connection import Connection

_BYTES_MAX = 1 << 30
_ORDER_BYTES_MAX = 4096  # columns have names of 63 bytes; and a parser that goes deep is not tempted
_PREFIX = "SELECT 1 ORDER BY "
_PARTS_OF_PREFIX = frozenset({"target_list", "sort_clause", "limit_option", "op"})
_DIRECTIONS = {"SORTBY_DEFAULT": "", "SORTBY_ASC": " ASC", "SORTBY_DESC": " DESC"}
_NULLS = {
    "SORTBY_NULLS_DEFAULT": "",
    "SORTBY_NULLS_FIRST": " NULLS FIRST",
    "SORTBY_NULLS_LAST": " NULLS LAST",
}


class SubsetError(ValueError):
    """Messages by field of the subset, as the client gets them under `errors.subset`."""

    def __init__(self, errors: Mapping[str, Any]) -> None:
        super().__init__(str(dict(errors)))
        self.errors = dict(errors)


@dataclass(frozen=True, slots=True)
class SubsetRequest:
    """As it was written; limit and offset are numbers of the right size."""

    where: str | None = None
    params: tuple[str, ...] = ()
    order_by: str | None = None
    limit: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Subset:
    condition: Condition | None
    rest: sql.Composable | None  # order and limit


def define_subset(definition: ShapeDefinition, request: SubsetRequest) -> Subset:
    """What a request means; a `SubsetError` says what is wrong with it."""
    limited = request.limit is not None or request.offset is not None
    if limited and not request.order_by:
        raise SubsetError({"order_by": ["order_by is required when limit or offset is present"]})
    condition = _condition(definition, request) if request.where else None
    rest: list[sql.Composable] = []
    if request.order_by:
        rest.append(_order(definition, request.order_by))
    if request.limit is not None:
        rest.append(sql.SQL("LIMIT {}").format(sql.Literal(request.limit)))
    if request.offset is not None:
        rest.append(sql.SQL("OFFSET {}").format(sql.Literal(request.offset)))
    return Subset(condition, sql.SQL(" ").join(rest) if rest else None)


def _queryable(definition: ShapeDefinition) -> frozenset[str]:
    return frozenset(definition.card.selectable if definition.queryable is None else definition.queryable)


def _condition(definition: ShapeDefinition, request: SubsetRequest) -> Condition:
    card, queryable = definition.card, _queryable(definition)
    assert request.where is not None
    try:
        condition = Condition.compile(
            request.where,
            [source for source in card.sources if source.name in queryable],
            params=dict(enumerate(request.params, 1)),
            # Inner tables need not be known: a subquery is refused whatever it reads.
            subqueries=_no_subqueries,
            enums={column.name: column.labels for column in card.columns if column.labels},
            nondeterministic=[column.name for column in card.columns if not column.deterministic],
            wording="electric",
        )
    except WhereError as error:
        raise SubsetError({"where": [str(error)]}) from None
    return condition


def _no_subqueries(_table: object) -> None:
    raise SubsetError({"where": ["Subqueries are not allowed in subsets"]})


def _order(definition: ShapeDefinition, text: str) -> sql.Composable:
    keys = [_sort_key(definition, node.sort_by) for node in _parse_order(text)]
    return sql.SQL("ORDER BY {}").format(sql.SQL(", ").join(keys))


def _parse_order(text: str) -> Any:
    from google.protobuf.message import DecodeError
    from postgast import PgQueryError, parse

    if len(text.encode(errors="replace")) > _ORDER_BYTES_MAX or "\0" in text:
        raise _wrong_order("ORDER BY clause is bigger than maximum size")
    try:
        statements = parse(_PREFIX + text).stmts
    except PgQueryError as error:
        location = max((error.cursorpos or 0) - 1, 0)
        raise _wrong_order(f"At location {location}: {error.message}") from None
    except (DecodeError, RecursionError, UnicodeEncodeError):
        raise _wrong_order("ORDER BY clause cannot be read") from None
    select = statements[0].stmt.select_stmt if len(statements) == 1 else None
    if select is None or not select.sort_clause:
        raise _wrong_order("ORDER BY takes one list of columns")
    if {field.name for field, _ in select.ListFields()} - _PARTS_OF_PREFIX or len(select.target_list) != 1:
        raise _wrong_order("malformed query ending with SQL clauses")
    return select.sort_clause


def _sort_key(definition: ShapeDefinition, sort: Any) -> sql.Composable:
    direction = _DIRECTIONS.get(_name_of(sort, "sortby_dir"))
    if direction is None:
        raise _wrong_order("USING is not allowed in ORDER BY clauses")
    kind = sort.node.WhichOneof("node")
    node = getattr(sort.node, kind)
    if kind == "column_ref":
        names = [field.string.sval if field.HasField("string") else "*" for field in node.fields]
        name = names[0] if len(names) == 1 else ".".join(names)
    elif kind == "a_const":
        name = _column_at(definition, node)
    else:
        raise _wrong_order(f"{node.DESCRIPTOR.name} expressions are not allowed in ORDER BY clauses")
    if name not in _queryable(definition):
        raise _wrong_order(f"unknown reference {name}")
    nulls = _NULLS[_name_of(sort, "sortby_nulls")]
    return sql.SQL("{}{}").format(_ordered(definition.card, name), sql.SQL(direction + nulls))


def _column_at(definition: ShapeDefinition, constant: Any) -> str:
    """As in a query, a number means a column by its place."""
    if constant.WhichOneof("val") != "ival":
        raise _wrong_order("non-integer constant in ORDER BY")
    place = constant.ival.ival
    if not 1 <= place <= len(definition.columns):
        raise _wrong_order(f"ORDER BY position {place} is not in select list")
    name: str = definition.columns[place - 1]
    return name


def _ordered(card: TableCard, name: str) -> sql.Composable:
    # By the name alone it would be the field of that name, which is text whatever the column is.
    column = sql.Identifier(card.stream.name, name)
    is_text = kind_of(card.column(name).source) is Kind.TEXT
    return sql.SQL('{} COLLATE "C"').format(column) if is_text else column


def _name_of(message: Any, field: str) -> str:
    values = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    name: str = values[getattr(message, field)].name
    return name


def _wrong_order(message: str) -> SubsetError:
    return SubsetError({"order_by": [message]})


class SubsetAnswer:
    """A subset's body. It holds a file until it is closed or collected."""

    def __init__(self, point: SnapshotPoint, spool: Spool) -> None:
        self.point = point
        self._spool = spool

    def pieces(self) -> Iterator[bytes]:
        """The whole body, from its start."""
        return self._spool.pieces()

    def close(self) -> None:
        self._spool.close()


class SubsetReader:
    """`on_changed` is told of tables that are not as their definition says; `row_headers` says which headers
    rows of a shape have besides."""

    def __init__(
        self,
        pool: QueryPool,
        settings: ShapeSettings,
        on_changed: OnChanged = lambda _table: None,
        row_headers: RowHeaders = lambda _shape: None,
    ) -> None:
        self._pool = pool
        self._row_headers = row_headers
        self._tables = PresentTables()
        self._on_changed = on_changed
        self._spools = Spools(settings.directory)
        self._first_data_s = settings.snapshot_first_data_timeout.total_seconds()
        self._lock_s = settings.snapshot_lock_timeout.total_seconds()

    def read(
        self, definition: ShapeDefinition, subset: Subset, shape: Shape | None = None
    ) -> Future[SubsetAnswer]:
        """With the headers that rows of `shape` have. Fails with a `SnapshotProblem`, or with a `SubsetError`
        if Postgres refuses the condition."""
        headers = None if shape is None else self._row_headers(shape)
        return self._pool.submit(lambda connection: self._read(connection, definition, subset, headers))

    def _read(
        self,
        connection: Connection,
        definition: ShapeDefinition,
        subset: Subset,
        row_headers: sql.Composable | None,
    ) -> SubsetAnswer:
        mark = secrets.randbits(31)
        spool = self._spools.open()
        try:
            with consistent(connection, tables_read(definition), self._lock_s) as (point, versions):
                own = [sql.SQL(subset.condition.sql())] if subset.condition is not None else []
                rows = RowLines(
                    self._tables.definition(connection, definition, versions),
                    headers=f',"snapshot_mark":{mark}',
                    row_headers=row_headers,
                    conditions=[*condition_of(definition), *own],
                    rest=subset.rest,
                )
                spool.write(_metadata(point, mark))
                separator = b""
                for lines in read_lines(connection, rows, self._first_data_s):
                    spool.write(separator + lines.content[:-1].replace(b"\n", b",\n"))
                    separator = b",\n"
                    if spool.size > _BYTES_MAX:
                        raise SubsetError({"limit": ["the subset is too large, ask for fewer rows"]})
                spool.write(b"]}")
        except BaseException as error:
            spool.close()
            if isinstance(error, psycopg.DataError) and subset.condition is not None:
                raise SubsetError({"where": _refusal(error)}) from error
            if isinstance(error, SubsetError):
                raise
            problem = problem_of(error, definition.table)
            if problem.status == 409:
                self._on_changed(definition.table)
            raise problem from error
        return SubsetAnswer(point, spool)


def _metadata(point: SnapshotPoint, mark: int) -> bytes:
    return b'{"metadata":{%s,"snapshot_mark":%d,"database_lsn":"%d"},"data":[' % (
        visibility(point),
        mark,
        point.lsn,
    )


def _refusal(error: psycopg.DataError) -> str:
    """What Postgres has against a condition. Its own words may quote a row, except about labels: those are
    the client's."""
    words = error.diag.message_primary or ""
    if words.startswith("invalid input value for enum"):
        return words
    kind = re.sub(r"(?<!^)([A-Z])", r" \1", type(error).__name__).lower()
    return f"the condition has no answer for some row: {kind}"
