"""Debezium's named choices, by its own names (without `.handling.mode` and `.precision.mode`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

DecimalMode: TypeAlias = Literal["precise", "string", "double"]
TimeMode: TypeAlias = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring"]
IntervalMode: TypeAlias = Literal["numeric", "string"]
BinaryMode: TypeAlias = Literal["bytes", "base64", "base64-url-safe", "hex"]


@dataclass(frozen=True, slots=True)
class Modes:
    decimals: DecimalMode = "precise"
    times: TimeMode = "adaptive"
    intervals: IntervalMode = "numeric"
    binary: BinaryMode = "bytes"
