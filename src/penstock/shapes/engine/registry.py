"""`ShapeRegistry`: which shapes there are, by handle and by definition, and when each was last read.

Storage holds shapes durably, each with its definition, and says after a restart which there were. What is not
a shape's own is kept here: the stack's id, which tags of
subqueries are made with and which is therefore as durable as they are; the server and timeline that the
shapes were read from (correctness 43); and, saved now and then, when each was last read, by which those are
found that nobody needs.

A handle is never given twice: it is the time of its making in microseconds, behind a hash of the definition.
"""

from __future__ import annotations

import heapq
import json
import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock import durable
from penstock.core.errors import StateError, StorageError
from penstock.core.stream import StreamId
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.shape import Shape

FORMAT_VERSION = 1
_STACK_FILE = "stack.json"
_READS_FILE = "reads.json"


@dataclass(frozen=True, slots=True)
class Stack:
    """Whose shapes these are. An empty system id: none were read yet."""

    stack_id: str
    system_id: str = ""
    timeline: int = 0


class ShapeRegistry:
    """Changed by the engine's thread; looked up from any. Handles and slots are given to any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.stack = self._read_stack()
        self._reads = self._read_reads()
        self._handles: dict[str, Shape] = {}
        self._identities: dict[str, Shape] = {}
        self._tables: dict[StreamId, int] = {}
        self._outer: dict[str, set[Shape]] = {}  # by the inner one's identity
        self._lock = threading.Lock()
        self._free: deque[int] = deque()
        self._next_slot = 0
        self._last_time_us = 0

    def __len__(self) -> int:
        return len(self._handles)

    def all(self) -> list[Shape]:
        return list(self._handles.values())

    def tables(self) -> list[StreamId]:
        """Those that shapes need."""
        return sorted(self._tables)

    def find(self, handle: str) -> Shape | None:
        return self._handles.get(handle)

    def existing(self, definition: ShapeDefinition) -> Shape | None:
        return self._identities.get(definition.identity)

    def new_handle(self, definition: ShapeDefinition) -> str:
        with self._lock:
            self._last_time_us = max(self._last_time_us + 1, time.time_ns() // 1000)
            return f"{zlib.crc32(definition.identity.encode())}-{self._last_time_us}"

    def new_slot(self) -> int:
        """A number that no shape has; those that became free longest ago are taken first."""
        with self._lock:
            if len(self._free) > max(64, self._next_slot // 2):
                return self._free.popleft()
            self._next_slot += 1
            return self._next_slot - 1

    def free_slot(self, slot: int) -> None:
        with self._lock:
            self._free.append(slot)

    def add(self, shape: Shape) -> None:
        self._handles[shape.handle] = shape
        self._identities[shape.definition.identity] = shape
        table = shape.definition.table
        self._tables[table] = self._tables.get(table, 0) + 1
        for inner in inner_definitions(shape.definition):
            self._outer.setdefault(inner.identity, set()).add(shape)
        shape.last_read = self._reads.pop(shape.handle, shape.last_read)

    def remove(self, shape: Shape) -> bool:
        """Whether it was there. Its slot stays its own until `free_slot`."""
        if self._handles.pop(shape.handle, None) is None:
            return False
        if self._identities.get(shape.definition.identity) is shape:
            del self._identities[shape.definition.identity]
        table = shape.definition.table
        self._tables[table] -= 1
        if not self._tables[table]:
            del self._tables[table]
        for inner in inner_definitions(shape.definition):
            self._outer[inner.identity].discard(shape)
            if not self._outer[inner.identity]:
                del self._outer[inner.identity]
        return True

    def inner_of(self, shape: Shape) -> list[Shape]:
        """The shapes that its condition's subqueries are read from."""
        inner = (self.existing(definition) for definition in inner_definitions(shape.definition))
        return [each for each in inner if each is not None]

    def outer_of(self, shape: Shape) -> list[Shape]:
        """The shapes whose conditions have this one as a subquery."""
        return list(self._outer.get(shape.definition.identity, ()))

    def is_inner(self, shape: Shape) -> bool:
        """Whether another one has it as a subquery."""
        return shape.definition.identity in self._outer

    def longest_unread(self, count: int) -> list[Shape]:
        """The first to go. Inner shapes are read by their outer ones, and go with them."""
        candidates = (shape for shape in self.all() if not shape.hidden and not self.is_inner(shape))
        return heapq.nsmallest(count, candidates, key=lambda shape: shape.last_read)

    def read_from(self, system_id: str, timeline: int) -> None:
        """Note, durably, whose changes the shapes have."""
        if (self.stack.system_id, self.stack.timeline) != (system_id, timeline):
            self._write_stack(replace(self.stack, system_id=system_id, timeline=timeline))

    def save_reads(self, shapes: Iterable[Shape]) -> None:
        """A copy that is a little old loses nothing but that."""
        reads = {shape.handle: round(shape.last_read, 3) for shape in shapes}
        content = {"format_version": FORMAT_VERSION, "last_read": reads}
        with suppress(OSError, StorageError):  # for want of room, for instance: nothing ends for that
            durable.replace(self._directory / _READS_FILE, json.dumps(content).encode())

    def _read_reads(self) -> dict[str, float]:
        try:
            found = json.loads((self._directory / _READS_FILE).read_bytes())
            return {str(handle): float(at) for handle, at in found["last_read"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _read_stack(self) -> Stack:
        path = self._directory / _STACK_FILE
        try:
            fields = json.loads(path.read_bytes())
            if fields.pop("format_version") > FORMAT_VERSION:
                raise StateError(
                    f"{path} was written by a newer Penstock.",
                    remedy="Install that version of Penstock, or a later one.",
                )
            return Stack(**fields)
        except FileNotFoundError:
            return self._write_stack(Stack(secrets.token_hex(8)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                f"{path} cannot be read.",
                remedy=f"Remove {self._directory}: shapes are made anew, and clients fetch them again.",
            ) from error

    def _write_stack(self, stack: Stack) -> Stack:
        content = {"format_version": FORMAT_VERSION, **asdict(stack)}
        durable.replace(self._directory / _STACK_FILE, durable.to_json_bytes(content))
        self.stack = stack
        return stack


def depth(definition: ShapeDefinition) -> int:
    """How many shapes depend on one another in it."""
    return 1 + max((depth(inner) for inner in inner_definitions(definition)), default=0)


def inner_definitions(definition: ShapeDefinition) -> list[ShapeDefinition]:
    """The shapes that a definition's subqueries stand for, each once."""
    atoms = definition.where.subqueries if definition.where is not None else ()
    return list({atom.definition.identity: atom.definition for atom in atoms}.values())
