"""`ShapeDefinition`: which rows and columns of which table a shape holds, and how it tells of changes.

A definition is made from what a client sent and the table's card, or refused with the messages of the wire
contract. Two requests that mean the same get the same `identity` and so share a shape: the table by oid and
name, its key, the condition as it is printed after checking (with its parameters in it), the columns that
were asked for, how changes are told. A request that names no columns asks for all there are: an added column
makes no other shape of it (`with_card` extends the columns). What a request says about storage, paging or
subsets is no part of the identity.

Definitions are written with the cards of their tables, so that a restart can read them without a source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from penstock.core.stream import StreamId
from penstock.core.where import Condition, Subquery, SubqueryTable, WhereError
from penstock.shapes.identifiers import IdentifierError, parse_columns, parse_table
from penstock.shapes.schema_header import schema_header
from penstock.shapes.source.catalog import TableCard
from penstock.shapes.subquery.normal_form import NormalForm, TooManyDisjunctsError

Replica = Literal["default", "full"]
LogMode = Literal["full", "changes_only"]
CardOf = Callable[[StreamId], TableCard | None]

SUBQUERIES_MAX = 32  # of a condition, those inside of others included: each is a shape
_GENERATED = "The following columns are generated and cannot be included in the shape: "


class DefinitionError(ValueError):
    """Messages by request field, as the client gets them."""

    def __init__(self, errors: Mapping[str, Any]) -> None:
        super().__init__(str(dict(errors)))
        self.errors = dict(errors)


@dataclass(frozen=True, slots=True)
class SubqueryAtom:
    """One `IN (SELECT …)`: the hidden shape that holds the inner rows, and the columns whose values count."""

    definition: ShapeDefinition
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WhereClause:
    """`text` is the normal form: what the source is asked and what identity is made of.

    `written` and `params` are what the client sent, kept so that it can be compiled again. `subqueries` are
    in the order of `condition.subqueries`.
    """

    text: str
    condition: Condition
    columns: frozenset[str]
    written: str
    params: tuple[str, ...] = ()
    subqueries: tuple[SubqueryAtom, ...] = ()


@dataclass(frozen=True, slots=True)
class ShapeDefinition:
    """`columns` in the table's order; `key` in its index's order, () means that all columns are the key."""

    table: StreamId
    oid: int
    columns: tuple[str, ...]
    selected_explicitly: bool
    key: tuple[str, ...]
    where: WhereClause | None = field(default=None, compare=False)  # `identity` has its text
    replica: Replica = "default"
    log: LogMode = "full"
    queryable: tuple[str, ...] | None = field(default=None, compare=False)  # bounds a request, not a shape
    # The table as it was when the definition was made, or has been extended since.
    card: TableCard = field(compare=False, repr=False, kw_only=True)
    identity: str = field(init=False)
    schema_header: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        content = [
            [self.table.namespace, self.table.name, self.oid],
            list(self.columns) if self.selected_explicitly else None,
            list(self.key),
            None if self.where is None else self.where.text,
            self.replica,
            self.log,
        ]
        text = json.dumps(content, separators=(",", ":"))
        object.__setattr__(self, "identity", hashlib.sha256(text.encode()).hexdigest())
        object.__setattr__(self, "schema_header", schema_header(self.card, self.columns))

    @property
    def has_subqueries(self) -> bool:
        return self.where is not None and bool(self.where.subqueries)

    def with_card(self, card: TableCard) -> ShapeDefinition:
        """The same shape of a table that has got columns, or whose nullability has changed; nothing else."""
        columns = self.columns if self.selected_explicitly else card.selectable
        return replace(self, card=card, columns=columns)

    def to_json(self) -> dict[str, Any]:
        where = self.where
        return {
            "format_version": 1,
            "cards": [card.to_json() for card in _cards(self)],
            "columns": list(self.columns),
            "selected_explicitly": self.selected_explicitly,
            "where": None if where is None else {"text": where.written, "params": list(where.params)},
            "replica": self.replica,
            "log": self.log,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ShapeDefinition:
        """Needs no source: the cards of its tables are in `fields`."""
        cards = [_card(json.dumps(card)) for card in fields["cards"]]
        by_name = {card.stream: card for card in cards}
        where = fields["where"]
        return cls(
            table=cards[0].stream,
            oid=cards[0].oid,
            columns=tuple(fields["columns"]),
            selected_explicitly=fields["selected_explicitly"],
            key=cards[0].key,
            where=where and compile_where(cards[0], where["text"], tuple(where["params"]), by_name.get),
            replica=fields["replica"],
            log=fields["log"],
            card=cards[0],
        )


@dataclass(frozen=True, slots=True)
class DefinitionRequest:
    """The part of a request that says which shape it wants, as it was written."""

    table: str
    columns: str | None = None
    where: str | None = None
    params: tuple[str, ...] = ()
    replica: Replica = "default"
    log: LogMode = "full"
    queryable_columns: str | None = None


def define(request: DefinitionRequest, card_of: CardOf) -> ShapeDefinition:
    """The shape that a request means; a `DefinitionError` says what is wrong with it. May ask the source."""
    card = _table(request.table, card_of)
    queryable = _named(request.queryable_columns, card, "queryable_columns")
    columns = _named(request.columns, card, "columns")
    if queryable is not None and columns is not None and not set(columns) <= set(queryable):
        beyond = ", ".join(name for name in columns if name not in queryable)
        raise DefinitionError({"columns": [f"The following columns are not queryable: {beyond}"]})
    selected = columns or queryable
    where = compile_where(card, request.where, request.params, card_of) if request.where else None
    return ShapeDefinition(
        table=card.stream,
        oid=card.oid,
        columns=selected or _all_columns(card),
        selected_explicitly=selected is not None,
        key=card.key,
        where=where,
        replica=request.replica,
        log=request.log,
        queryable=queryable,
        card=card,
    )


def compile_where(card: TableCard, text: str, params: tuple[str, ...], card_of: CardOf) -> WhereClause:
    """The clause, checked against its table; inner tables of subqueries by `card_of`."""

    def resolve(stream: StreamId) -> SubqueryTable | None:
        inner = card_of(stream)
        if inner is None or not _is_followed(inner) or inner.is_branch:
            return None
        return SubqueryTable(
            inner.stream, inner.sources, _enums(inner), _nondeterministic(inner), only=inner.kind != "p"
        )

    try:
        condition = Condition.compile(
            text,
            card.sources,
            params=dict(enumerate(params, 1)),
            subqueries=resolve,
            enums=_enums(card),
            nondeterministic=_nondeterministic(card),
            wording="electric",
        )
    except WhereError as error:
        raise DefinitionError({"where": [str(error)]}) from None
    if _count_subqueries(condition) > SUBQUERIES_MAX:
        raise DefinitionError({"where": [f"a condition takes {SUBQUERIES_MAX} subqueries at most"]})
    return _clause(condition, text, params, card_of)


def _count_subqueries(condition: Condition | None) -> int:
    inner = () if condition is None else condition.subqueries
    return len(inner) + sum(_count_subqueries(each.condition) for each in inner)


def _clause(condition: Condition, text: str, params: tuple[str, ...], card_of: CardOf) -> WhereClause:
    if condition.subqueries:
        try:
            NormalForm.of(condition.expression)
        except TooManyDisjunctsError as error:
            raise DefinitionError({"where": [str(error)]}) from None
    return WhereClause(
        text=condition.sql(),
        condition=condition,
        columns=condition.columns,
        written=text,
        params=params,
        subqueries=tuple(_atom(subquery, params, card_of) for subquery in condition.subqueries),
    )


def _atom(subquery: Subquery, params: tuple[str, ...], card_of: CardOf) -> SubqueryAtom:
    """The hidden shape of an inner select: the values that count, and the key that tells rows apart."""
    card = card_of(subquery.stream)
    assert card is not None, "the condition was compiled against it"
    counted = tuple(column.name for column in subquery.columns)
    inner = subquery.condition
    return SubqueryAtom(
        ShapeDefinition(
            table=card.stream,
            oid=card.oid,
            columns=_in_table_order({*counted, *(card.key or card.selectable)}, card),
            selected_explicitly=True,
            key=card.key,
            where=None if inner is None else _clause(inner, inner.text, params, card_of),
            card=card,
        ),
        counted,
    )


def _table(text: str, card_of: CardOf) -> TableCard:
    try:
        stream = parse_table(text)
    except IdentifierError as error:
        raise DefinitionError({"table": [str(error)]}) from None
    card = None if "." in stream.namespace else card_of(stream)  # no stream id can say such a schema
    name = ".".join('"' + part.replace('"', '""') + '"' for part in (stream.namespace, stream.name))
    if card is None:
        raise DefinitionError(
            {
                "table": [
                    f"Table {name} does not exist. If the table name contains capitals or special "
                    "characters you must quote it."
                ]
            }
        )
    if not _is_followed(card):
        raise DefinitionError(
            {"table": [f"{name} has no changes to follow: only ordinary and partitioned tables have"]}
        )
    if card.is_branch:
        message = f"{name} is a partition with partitions of its own: ask for its root, or for one of those"
        raise DefinitionError({"table": [message]})
    if virtual := [column.name for column in card.columns if column.virtual]:
        message = (
            f"{name} has virtual generated columns ({', '.join(virtual)}): Postgres would refuse to update "
            "and delete its rows if it were to log them whole, as shapes need it"
        )
        raise DefinitionError({"table": [message]})
    return card


def _is_followed(card: TableCard) -> bool:
    return card.kind in ("r", "p") and not card.unlogged


def _named(text: str | None, card: TableCard, parameter: str) -> tuple[str, ...] | None:
    """The columns that a parameter lists, in the table's order."""
    if text is None:
        return None
    try:
        names = parse_columns(text)
    except IdentifierError as error:
        raise DefinitionError({parameter: [str(error)]}) from None
    if unknown := [name for name in names if name not in card.names]:
        message = f"The following columns are not found on the table: {', '.join(unknown)}"
        raise DefinitionError({parameter: [message]})
    if missing := [name for name in card.key if name not in names]:
        message = f"The list of columns must include all primary key columns, missing: {', '.join(missing)}"
        raise DefinitionError({parameter: [message]})
    if generated := [name for name in names if card.column(name).generated]:
        raise DefinitionError({parameter: [_GENERATED + ", ".join(generated)]})
    return _in_table_order(names, card)


def _all_columns(card: TableCard) -> tuple[str, ...]:
    if generated := [column.name for column in card.columns if column.generated]:
        message = f"{_GENERATED}{', '.join(generated)}. You can exclude them by naming others in 'columns'."
        raise DefinitionError({"columns": [message]})
    return card.selectable


def _in_table_order(names: Iterable[str], card: TableCard) -> tuple[str, ...]:
    wanted = set(names)
    return tuple(name for name in card.names if name in wanted)


def _enums(card: TableCard) -> dict[str, tuple[str, ...]]:
    return {column.name: column.labels for column in card.columns if column.labels}


def _nondeterministic(card: TableCard) -> frozenset[str]:
    return frozenset(column.name for column in card.columns if not column.deterministic)


def _cards(definition: ShapeDefinition) -> list[TableCard]:
    """Its table's card first, then those of its subqueries at any depth, each once."""
    cards = {definition.card.stream: definition.card}
    for atom in definition.where.subqueries if definition.where else ():
        for card in _cards(atom.definition):
            cards.setdefault(card.stream, card)
    return list(cards.values())


@lru_cache(maxsize=1024)
def _card(text: str) -> TableCard:
    """Thousands of shapes of one table share one card."""
    return TableCard.from_json(json.loads(text))
