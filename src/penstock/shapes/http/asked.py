"""A request with what its answer depends on besides, and the ends that are no answer of its own."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.http.compression import Encoding
from penstock.shapes.http.request import ShapeRequest


@dataclass(frozen=True, slots=True)
class Asked:
    request: ShapeRequest
    definition: ShapeDefinition
    post: bool = False
    encoding: Encoding | None = None
    if_none_match: bytes | None = None


class RefetchError(Exception):
    """The client's handle is of no use any more; `handle` is the one to use instead, if there is one."""

    def __init__(self, handle: str | None) -> None:
        super().__init__(handle)
        self.handle = handle


class OutOfBoundsError(Exception):
    """An offset that the shape has not, and that did not appear."""
