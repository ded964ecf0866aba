"""What capture is told, of one flat set of values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import CaptureSpec


def slot_of(spec: CaptureSpec) -> str:
    assert isinstance(spec.source, PostgresSpec)
    return spec.source.slot


_OF_SOURCE = frozenset(field.name for field in fields(PostgresSpec))


def capture_spec(**values: Any) -> CaptureSpec:
    """Those that are the source's are its."""
    source = {name: value for name, value in values.items() if name in _OF_SOURCE}
    common = {name: value for name, value in values.items() if name not in _OF_SOURCE}
    return CaptureSpec(source=PostgresSpec(**source), **common)
