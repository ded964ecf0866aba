"""Settings by the names that Electric gives them, so that a deployment can be switched over.

Values are written as Electric takes them: a bare number of a duration is milliseconds, except for the ages of
caches, which are seconds; everything but `false`, `0` and the empty text is true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import ConfigError

STREAM_ID = "ELECTRIC_REPLICATION_STREAM_ID"
MANUAL_PUBLISHING = "ELECTRIC_MANUAL_TABLE_PUBLISHING"
PROMETHEUS_PORT = "ELECTRIC_PROMETHEUS_PORT"
CA_CERTIFICATE = "ELECTRIC_DATABASE_CA_CERTIFICATE_FILE"

_TIME = re.compile(r"\A\s*(\d+(?:\.\d+)?)\s*(ms|msec|s|sec|m|min|h|hr)?\s*\Z")
_MILLISECONDS = {"ms": 1, "msec": 1, "s": 1e3, "sec": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6, "hr": 3.6e6}


def truth(text: str) -> bool:
    return text.strip().lower() not in ("", "false", "0")


def _time(text: str) -> str:
    match = _TIME.match(text)
    if match is None:
        raise ValueError("should be a number of milliseconds, or a number with ms, s, min or h")
    return f"{float(match[1]) * _MILLISECONDS[match[2] or 'ms']:f}ms"


def _seconds(text: str) -> str:
    return f"{int(text)}s"


def _limits(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError('should be a JSON object such as {"initial": 300, "existing": 10000}')
    return found


def _ipv6(text: str) -> str:
    return "::" if truth(text) else "0.0.0.0"  # noqa: S104 - as `host` has it


#: Variable: setting, and how its text is read. Of two for one setting, the later one wins.
ALIASES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "DATABASE_URL": ("url", str),
    "ELECTRIC_PORT": ("port", int),
    "ELECTRIC_LISTEN_ON_IPV6": ("host", _ipv6),
    "ELECTRIC_SECRET": ("secret", str),
    "ELECTRIC_INSECURE": ("insecure", truth),
    "ELECTRIC_ENABLE_INTEGRATION_TESTING": ("allow_shape_deletion", truth),
    "ELECTRIC_STORAGE_DIR": ("storage_dir", str),
    "ELECTRIC_EXPERIMENTAL_MAX_SHAPES": ("max_shapes", int),
    "ELECTRIC_MAX_SHAPES": ("max_shapes", int),
    "ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD": ("chunk_bytes_threshold", int),
    "ELECTRIC_CACHE_MAX_AGE": ("cache_max_age", _seconds),
    "ELECTRIC_CACHE_STALE_AGE": ("cache_stale_age", _seconds),
    "ELECTRIC_LONG_POLL_TIMEOUT": ("long_poll_timeout", _time),
    "ELECTRIC_TCP_SEND_TIMEOUT": ("send_timeout", _time),
    "ELECTRIC_MAX_CONCURRENT_REQUESTS": ("max_concurrent_requests", _limits),
    "ELECTRIC_QUERY_DATABASE_URL": ("pooled_url", str),
    "ELECTRIC_POOLED_DATABASE_URL": ("pooled_url", str),
    "ELECTRIC_DB_POOL_SIZE": ("db_pool_size", int),
    "ELECTRIC_TWEAKS_SCHEMA_RECONCILER_PERIOD": ("schema_check_every", _time),
    "ELECTRIC_SUBQUERY_BUFFER_MAX_TRANSACTIONS": ("subquery_buffer_max_transactions", int),
}

#: For `penstock shapes serve` alone: a pipeline file has its own words for them.
OF_THE_SERVICE = frozenset({STREAM_ID, MANUAL_PUBLISHING, PROMETHEUS_PORT, CA_CERTIFICATE})


@dataclass(frozen=True, slots=True)
class Found:
    """`variables`: which variable a setting came from. `unknown`: variables of Electric's without a meaning
    here."""

    values: dict[str, Any]
    variables: dict[str, str]
    unknown: tuple[str, ...]


def from_environment(environment: Mapping[str, str]) -> Found:
    """All settings that the environment has. Empty variables are as good as none."""
    values: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for variable, (setting, read) in ALIASES.items():
        text = environment.get(variable, "")
        if not text:
            continue
        try:
            values[setting] = read(text)
        except ValueError as error:
            wrong = "should be a whole number" if read in (int, _seconds) else _reason(error)
            raise ConfigError(f"{variable} {wrong}.", remedy=f"Set {variable} anew.") from None
        variables[setting] = variable
    known = {*ALIASES, *OF_THE_SERVICE}
    unknown = sorted(name for name in environment if name.startswith("ELECTRIC_") and name not in known)
    return Found(values, variables, tuple(unknown))


def _reason(error: ValueError) -> str:
    return "is no JSON" if isinstance(error, json.JSONDecodeError) else str(error)
