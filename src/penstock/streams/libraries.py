"""What a target is spoken to with: client libraries, each an extra of its own."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.config.streams import KAFKA_LANE, KINESIS_LANE
from penstock.core.errors import ConfigError

_NEEDED = {KAFKA_LANE: "confluent_kafka", KINESIS_LANE: "boto3"}


def require_library(lane: str) -> None:
    """An error if what the lane's target is spoken to with is not installed."""
    if lane in _NEEDED and find_spec(_NEEDED[lane]) is None:
        raise ConfigError(
            f"What speaks to {lane} is not installed.", remedy=f"Run: pip install 'penstock[{lane}]'."
        )
