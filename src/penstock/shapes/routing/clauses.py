"""The conditions of all shapes, each once: as programs where there is one, else as trees for Arrow.

Shapes often differ in the value of one column alone, which the index takes care of; what remains of their
conditions is then one clause for all of them. Programs lie in arrays that compiled code reads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core.where import tree
from penstock.shapes.routing import program_kernels as kernels
from penstock.shapes.routing.arena import Arena, ranges
from penstock.shapes.routing.operands import NoProgramError, Operands
from penstock.shapes.routing.program import Program, compile_program

_HOLES_MIN = 4096  # tests, constants and bytes; packing for fewer is not worth it
_LENGTHS = [kernels.CODE_LENGTH, kernels.CONSTANT_LENGTH, kernels.DATA_LENGTH]


class Programs(NamedTuple):
    """As the kernels take them."""

    programs: npt.NDArray[np.int64]
    code: npt.NDArray[np.int32]
    constants: npt.NDArray[np.int64]
    constant_lengths: npt.NDArray[np.int32]
    constant_data: npt.NDArray[np.uint8]


class Clauses:
    def __init__(self) -> None:
        self.operands = Operands()
        self._numbers: dict[tree.Expression, int] = {}
        self._expressions: dict[int, tree.Expression] = {}
        self._uses: dict[int, int] = {}
        self._free: list[int] = []
        self._programs = Arena(np.int64, kernels.PROGRAM_FIELDS)
        self._code = Arena(np.int32, kernels.FIELDS)
        self._constants = Arena(np.int64)
        self._lengths = Arena(np.int32)
        self._data = Arena(np.uint8)
        self._holes = 0

    def __len__(self) -> int:
        return len(self._uses)

    def take(self, expression: tree.Expression) -> int:
        """Its number, to be given back once."""
        number = self._numbers.get(expression)
        if number is None:
            number = self._add(expression)
        self._uses[number] = self._uses.get(number, 0) + 1
        return number

    def give_back(self, number: int) -> None:
        self._uses[number] -= 1
        if self._uses[number]:
            return
        del self._uses[number], self._numbers[self._expressions.pop(number)]
        self._free.append(number)
        self._holes += int(self._programs.view[number, _LENGTHS].sum())
        self._programs.view[number] = 0
        used = len(self._code) + len(self._constants) + len(self._data)
        if self._holes > _HOLES_MIN and self._holes * 2 > used:
            self._pack()

    def expression(self, number: int) -> tree.Expression:
        return self._expressions[number]

    def has_program(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._programs.view[numbers, kernels.IS_PROGRAM] == 1
        return found

    def operands_of(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        used: npt.NDArray[np.bool_] = kernels.operands_of(
            numbers, self._programs.view, self._code.view, len(self.operands)
        )
        return used

    def programs(self) -> Programs:
        return Programs(
            self._programs.view, self._code.view, self._constants.view, self._lengths.view, self._data.view
        )

    def _add(self, expression: tree.Expression) -> int:
        try:
            program = compile_program(expression, self.operands)
        except NoProgramError:
            program = None
        row = self._store(program) if program is not None else [0] * kernels.PROGRAM_FIELDS
        if self._free:
            number = self._free.pop()
            self._programs.view[number] = row
        else:
            number = self._programs.append([row])
        self._numbers[expression] = number
        self._expressions[number] = expression
        return number

    def _store(self, program: Program) -> list[int]:
        """Its row in the table of programs."""
        self._lengths.append(program.lengths)
        row = {
            kernels.CODE_AT: self._code.append(program.tests),
            kernels.CODE_LENGTH: len(program.tests),
            kernels.CONSTANT_AT: self._constants.append(program.constants),
            kernels.CONSTANT_LENGTH: len(program.constants),
            kernels.DATA_AT: self._data.append(np.frombuffer(program.data, np.uint8)),
            kernels.DATA_LENGTH: len(program.data),
            kernels.ENTRY: program.entry,
            kernels.IS_PROGRAM: 1,
        }
        return [row[field] for field in range(kernels.PROGRAM_FIELDS)]

    def _pack(self) -> None:
        programs = self._programs.view
        for at, length, arenas in (
            (kernels.CODE_AT, kernels.CODE_LENGTH, [self._code]),
            (kernels.CONSTANT_AT, kernels.CONSTANT_LENGTH, [self._constants, self._lengths]),
            (kernels.DATA_AT, kernels.DATA_LENGTH, [self._data]),
        ):
            kept, programs[:, at] = ranges(programs[:, at], programs[:, length])
            for arena in arenas:
                arena.keep(kept)
        self._holes = 0
