"""How a lane writes to a Kinesis stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.config.streams import KinesisLaneConfig

#: Of the take-over wait: so long a request may last at most, without its connection, and that one.
_REQUEST_SHARE, _CONNECT_SHARE = 5 / 7, 1 / 7


@dataclass(frozen=True, slots=True)
class KinesisSettings:
    """Credentials are found where the AWS tools find them, never here."""

    stream: str
    region: str | None = None
    endpoint: str | None = None
    aggregation: bool = False
    on_unproven: Literal["publish", "stop"] = "publish"
    take_over_wait_s: float = 35.0
    per_shard_in_flight: int = 4

    @classmethod
    def of(cls, section: KinesisLaneConfig) -> KinesisSettings:
        return cls(
            section.stream,
            section.region,
            section.endpoint,
            section.aggregation,
            section.on_unproven,
            section.take_over_wait.total_seconds(),
            section.per_shard_in_flight,
        )

    @property
    def request_timeout_s(self) -> float:
        """Less than the take-over wait: a request that is given up has arrived by its end, or never does."""
        return self.take_over_wait_s * _REQUEST_SHARE

    @property
    def connect_timeout_s(self) -> float:
        return self.take_over_wait_s * _CONNECT_SHARE

    @property
    def lease_s(self) -> float:
        """A put is begun only within so long of a proof that this term leads (`streams.lease`)."""
        return self.take_over_wait_s * (1 - _REQUEST_SHARE - _CONNECT_SHARE)
