"""The pipeline file, `penstock.yaml`, as checked values.

`Config.load(path)` either gives a configuration that makes sense, or a `ConfigError` that names every
problem with its line. A key that a later version will understand is refused by name, never ignored.
Values that came from the environment or a file do not appear in errors, logs or `repr`.
"""

from __future__ import annotations

from penstock.config.destination import DestinationConfig
from penstock.config.models import Config
from penstock.config.sections import LoadConfig, LogConfig, ReadersConfig, SparkConfig, StreamConfig
from penstock.config.source import (
    MongoSourceConfig,
    MysqlSourceConfig,
    PostgresSourceConfig,
    SourceConfig,
)

__all__ = [
    "Config",
    "DestinationConfig",
    "LoadConfig",
    "LogConfig",
    "MongoSourceConfig",
    "MysqlSourceConfig",
    "PostgresSourceConfig",
    "ReadersConfig",
    "SourceConfig",
    "SparkConfig",
    "StreamConfig",
]
