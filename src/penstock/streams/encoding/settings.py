"""What a lane's section says of its format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.streams.encoding.modes import BinaryMode, DecimalMode, IntervalMode, Modes, TimeMode

FormatName: TypeAlias = Literal["json", "debezium", "avro", "protobuf"]


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where schemas are registered: Avro and Protobuf need it."""

    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""  # PEM file of the authorities its certificate is checked against; empty: the system's


@dataclass(frozen=True, slots=True)
class EncodingSettings:
    """The modes are Debezium's (`modes`), and so is `schemas`: each record says its schema."""

    format: FormatName = "json"
    registry: RegistrySettings | None = None
    decimals: DecimalMode = "precise"
    times: TimeMode = "adaptive"
    intervals: IntervalMode = "numeric"
    binary: BinaryMode = "bytes"
    schemas: bool = False
    mask_salt: str = field(default="", repr=False)

    @property
    def modes(self) -> Modes:
        return Modes(self.decimals, self.times, self.intervals, self.binary)
