"""Definitions of requests, remembered: a client that polls asks for the same shape again and again.

What was remembered holds while the catalog's cards stay as they are. A plain definition of a known table is
made at once; conditions are compiled in a thread (half a millisecond each), as Postgres is asked in one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.core.stream import StreamId
from penstock.shapes.definition import DefinitionRequest, ShapeDefinition, define
from penstock.shapes.source.catalog import Catalog, TableCard

REMEMBERED_MAX = 20_000
_THREADS = 8
_REMEMBERED_CHARACTERS_MAX = 4096
Result = TypeVar("Result")


class _AskError(Exception):
    """A card that has to be read first."""


class Definitions:
    """Used in the loop's thread."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # Of its own: while the source cannot be reached, what there is must still be read.
        self._threads = ThreadPoolExecutor(_THREADS, "shape-defining")
        self._version = catalog.version
        self._known: OrderedDict[DefinitionRequest, ShapeDefinition] = OrderedDict()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def known(self, request: DefinitionRequest) -> ShapeDefinition | None:
        if self._version != self._catalog.version:
            self._version = self._catalog.version
            self._known.clear()
        return self._known.get(request)

    async def off_loop(self, call: Callable[[], Result]) -> Result:
        """Have it called in a thread that conditions are compiled in."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def define(self, request: DefinitionRequest) -> ShapeDefinition:
        """`DefinitionError` if the request means no shape; what the catalog raises if it cannot be asked."""
        known = self.known(request)
        if known is not None:
            return known
        version = self._version
        definition = self._at_once(request) if request.where is None else None
        if definition is None:
            definition = await self.off_loop(lambda: define(request, self._catalog.card))
        if version == self._catalog.version and _size(request) <= _REMEMBERED_CHARACTERS_MAX:
            self._known[request] = definition
            if len(self._known) > REMEMBERED_MAX:
                self._known.popitem(last=False)
        return definition

    def _at_once(self, request: DefinitionRequest) -> ShapeDefinition | None:
        try:
            return define(request, self._card)
        except _AskError:
            return None

    def _card(self, stream: StreamId) -> TableCard:
        card = self._catalog.known(stream)
        if card is None:
            raise _AskError
        return card


def _size(request: DefinitionRequest) -> int:
    texts = (request.table, request.columns, request.where, request.queryable_columns, *request.params)
    return sum(len(text or "") for text in texts)
