"""What a column's values are in Arrow, by a table of rules: one table for each kind of source.

A source names its types as it likes; its table says for each name which Arrow type holds the values, and how
the text that the change log has is cast to it. What a table does not list is held as text, which holds
everything. What the Arrow type of a column cannot hold is *bad*: null in `values` and marked in `bad`, for
the caller to make a dead letter of.

A pipeline may have a column held otherwise (`SourceColumn.held_as`): as text; as a decimal, a time or a list,
where what does not fit is bad, and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.core.errors import ConfigError
from penstock.core.held_as import HeldAs
from penstock.core.schema import SourceColumn
from penstock.values.common_types import CommonType
from penstock.values.text_casts import Cast, CastResult, as_text, decimals, lists, times


@dataclass(frozen=True, slots=True)
class Rule:
    arrow: Callable[[SourceColumn], pa.DataType]
    from_text: Cast


def always(arrow: pa.DataType) -> Callable[[SourceColumn], pa.DataType]:
    return lambda column: arrow


TEXT = Rule(always(pa.string()), as_text)


class TypeRules:
    """`rules` by the name that `name_of` gives a column's type; `choices`: what types can be held as besides.

    `name_of` is empty for a type that only has the name of one in the table.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        name_of: Callable[[SourceColumn], str],
        choices: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._rules = rules
        self.built_in_name = name_of
        self._choices = choices

    def arrow_type(self, column: SourceColumn) -> pa.DataType:
        return self._rule(column).arrow(column)

    def cast_text(self, array: pa.Array, column: SourceColumn) -> CastResult:
        """Text as the source prints it → the column's Arrow type."""
        rule = self._rule(column)
        arrow = rule.arrow(column)
        if not len(array):
            return CastResult(pa.array([], arrow))
        return rule.from_text(_as_strings(array), arrow)

    def possible_types(self, column: SourceColumn) -> tuple[str, ...]:
        """What the pipeline file may have a column held as, beside the type it has by itself."""
        special = self._choices.get(self.built_in_name(column), ())
        return ("text", *special, *(("list",) if column.element else ()))

    def can_be_held_as(self, column: SourceColumn, choice: HeldAs) -> bool:
        return choice.kind in {possible.partition("(")[0] for possible in self.possible_types(column)}

    def common(self, column: SourceColumn) -> CommonType:
        """Of a source that has the common names and texts itself."""
        return CommonType(self.built_in_name(column), column.type_modifier)

    def _rule(self, column: SourceColumn) -> Rule:
        if column.held_as:
            return self._chosen(column, HeldAs.parse(column.held_as))
        return self._rules.get(self.built_in_name(column), TEXT)

    def _chosen(self, column: SourceColumn, choice: HeldAs) -> Rule:
        if not self.can_be_held_as(column, choice):
            raise ConfigError(
                f"The column {column.name} of type {column.type_text} cannot be held as {choice}.",
                remedy=f"Possible in `types` for this column: {', '.join(self.possible_types(column))}.",
            )
        if choice.kind == "decimal":
            return Rule(always(pa.decimal128(choice.precision, choice.scale)), decimals)
        if choice.kind == "time":
            return Rule(always(pa.time64("us")), times)
        if choice.kind == "list":
            element = replace(column, type_oid=0, type_name=column.element, element="", held_as="")
            rule = self._rule(element)
            return Rule(always(pa.list_(rule.arrow(element))), lists(rule.from_text))
        return TEXT


def _as_strings(array: pa.Array) -> pa.StringArray:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array if pa.types.is_string(array.type) else array.cast(pa.string())
