"""The rows of a batch as conditions see them: an image of each row after its change, then one before it.

Image `row` is the row as it is, image `rows + row` the row as it was; without updates and deletes there is
only the first half. An image that a change does not have (the new row of a delete) is there and means
nothing: whoever asks goes by the change's kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.transactions import DELETE, INSERT, UPDATE, ChangeRows
from penstock.core.where import columns, tree
from penstock.core.where.evaluate import evaluate
from penstock.core.where.kinds import Kind
from penstock.shapes.routing.operands import is_number, sortable

_NO_BYTES = np.empty(0, np.uint8)


class Texts(NamedTuple):
    """Where each value starts in `data`, and its length; -1 is null. Of numbers the starts are the values."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]


class Frame(NamedTuple):
    """Operands as the kernels take them: `place` says which row of the matrices an operand has."""

    place: npt.NDArray[np.int32]
    values: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]


class Images:
    def __init__(self, changes: ChangeRows) -> None:
        self.op = changes.op
        self.rows = len(self.op)
        self._changes = changes
        self.is_new = (self.op == INSERT) | (self.op == UPDATE)
        self.is_old = (self.op == UPDATE) | (self.op == DELETE)
        self.has_old = bool(self.is_old.any())
        self.count = 2 * self.rows if self.has_old else self.rows
        self._texts: dict[str, pa.StringArray] = {}

    @cached_property
    def existing(self) -> npt.NDArray[np.int32]:
        """The images that mean something, in order."""
        if not self.has_old:
            return np.flatnonzero(self.is_new).astype(np.int32)
        return np.flatnonzero(np.concatenate((self.is_new, self.is_old))).astype(np.int32)

    def text(self, name: str) -> pa.StringArray:
        """Never a slice: of one, Arrow's `if_else` beside a null gives texts from elsewhere (21.0)."""
        if name not in self._texts:
            sides = [self._changes.new(name), *([self._changes.old(name)] if self.has_old else [])]
            self._texts[name] = pa.concat_arrays(sides) if len(sides) > 1 or sides[0].offset else sides[0]
        return self._texts[name]

    def evaluate(
        self, expression: tree.Expression, chosen: npt.NDArray[np.int32] | None = None
    ) -> npt.NDArray[np.bool_]:
        """For each image, or each chosen one, whether the condition is true."""
        texts = {column.name: self.text(column.name) for column in tree.columns_in(expression)}
        if chosen is not None:
            texts = {name: text.take(pa.array(chosen)) for name, text in texts.items()}
        answer = evaluate(expression, texts, self.count if chosen is None else len(chosen))
        found: npt.NDArray[np.bool_] = answer.fill_null(False).to_numpy(zero_copy_only=False)
        return found

    def operand(self, expression: tree.Expression) -> Texts:
        """What a test looks at, of every image."""
        if isinstance(expression, tree.Column) and is_number(expression):
            return read_texts(columns.read(self.text(expression.name), expression.kind))
        if isinstance(expression, tree.Column) or expression.kind is Kind.NUMERIC:
            # A numeric is a column or a whole number, whose text is the numeric's.
            return read_texts(self.text(next(tree.columns_in(expression)).name))
        texts = {column.name: self.text(column.name) for column in tree.columns_in(expression)}
        return read_texts(evaluate(expression, texts, self.count))


def frame(operands: int, loaded: Sequence[tuple[int, Texts]], images: int) -> Frame:
    """Of `operands` there are, those that are `loaded`."""
    place = np.full(operands, -1, np.int32)
    values = np.empty((len(loaded), images), np.int64)
    lengths = np.empty((len(loaded), images), np.int32)
    pieces: list[npt.NDArray[np.uint8]] = []
    size = 0
    for row, (number, texts) in enumerate(loaded):
        place[number] = row
        lengths[row] = texts.lengths
        if len(texts.data):
            np.add(texts.starts, size, out=values[row])
            pieces.append(texts.data)
            size += len(texts.data)
        else:
            values[row] = texts.starts
    data = pieces[0] if len(pieces) == 1 else np.concatenate([_NO_BYTES, *pieces])
    return Frame(place, values, lengths, data)


def read_texts(array: Any) -> Texts:
    """An array of Arrow, of texts or of numbers; what a null's value is does not matter."""
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if pa.types.is_string(array.type):
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        first, end = int(ends[0]), int(ends[-1])
        starts, lengths = ends[:-1].astype(np.int64) - first, np.diff(ends)
        held = np.frombuffer(data, np.uint8)[first:end] if end > first else _NO_BYTES
    else:
        starts, lengths, held = _numbers(array), np.zeros(len(array), np.int32), _NO_BYTES
    if missing is not None:
        lengths[missing] = -1
    return Texts(starts, lengths, held)


def _numbers(array: Any) -> npt.NDArray[np.int64]:
    if pa.types.is_boolean(array.type):
        truths: npt.NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
        return truths.astype(np.int64)
    if array.type.bit_width != 64:
        raise TypeError(f"an operand has the type {array.type}")
    held = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array)]
    return sortable(held.view(np.float64)) if pa.types.is_floating(array.type) else held
