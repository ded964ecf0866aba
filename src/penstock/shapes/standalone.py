"""`penstock shapes serve`: what capture and the live lane are told without a pipeline file.

All that is kept lies in one directory: the change log, the lanes and `run.json` as in a state directory, and
`shapes/` for the lane. Instances with the same database and stream id share slot and publication: one leads,
the others wait and serve what they have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import CaptureSpec, ServiceSpec
from penstock.config.sections import LogConfig, RunConfig, WalConfig
from penstock.core.errors import ConfigError
from penstock.ledger.lanes import LANES_FILE
from penstock.shapes.environment import (
    CA_CERTIFICATE,
    MANUAL_PUBLISHING,
    PROMETHEUS_PORT,
    STREAM_ID,
    from_environment,
    truth,
)
from penstock.shapes.settings import SHAPES_LANE, ShapeSettings

STORAGE_DIRECTORY = "persistent"
#: Nobody else reads this log: what the lane holds is kept only for whoever is reading it just now.
_LOG_RETENTION_S = 60.0
#: The source may forget what is sealed and saved: about so long after it was written, where little is.
_SEAL_EVERY_S = 1.0
#: `penstock_publication_` and this are a name at the source, of 63 bytes at most.
_STREAM = re.compile(r"\A[a-z0-9_]{1,40}\Z")


@dataclass(frozen=True, slots=True)
class Standalone:
    """`listen`: where metrics are served. `unknown`: variables of Electric's that mean nothing here."""

    settings: ShapeSettings
    state: Path
    listen: str
    unknown: tuple[str, ...]

    def capture(self, service: ServiceSpec) -> CaptureSpec:
        log, run, wal, settings = LogConfig(), RunConfig(), WalConfig(), self.settings
        return CaptureSpec(
            source=PostgresSpec(
                settings.source_url, settings.slot, settings.publication, settings.publication_mode
            ),
            log_directory=self.state / "log",
            checkpoint_path=self.state / "checkpoint.json",
            step_bytes_max=int(log.step_bytes_max),
            lanes={SHAPES_LANE: None},
            renewable=frozenset({SHAPES_LANE}),
            service=service,
            heartbeat_s=run.heartbeat.total_seconds(),
            seal_every_s=_SEAL_EVERY_S,
            checkpoint_interval_s=_SEAL_EVERY_S,
            tail_bytes_max=int(log.tail_bytes_max),
            log_retention_s=_LOG_RETENTION_S,
            wal_max_retained=int(wal.max_retained),
            lanes_path=self.state / LANES_FILE,
        )


def standalone(environment: Mapping[str, str], options: Mapping[str, Any]) -> Standalone:
    """`options`: settings by their names, as the command line gives them."""
    found = from_environment(environment)
    state = state_directory(environment, options.get("storage_dir"))
    if (state / "state.json").exists():
        raise ConfigError(
            f"{state} is the state directory of a pipeline.",
            remedy="Name another one: --storage-dir, or ELECTRIC_STORAGE_DIR; or have the pipeline serve "
            "shapes: `lanes.shapes`.",
        )
    if "url" not in found.values:
        raise ConfigError(
            "There is no database to serve shapes of.",
            remedy="Set DATABASE_URL=postgresql://user:password@host:5432/database.",
        )
    stream_id = environment.get(STREAM_ID, "").lower() or "default"
    if not _STREAM.match(stream_id):
        raise ConfigError(
            f"{STREAM_ID} is part of names at the source, and this cannot be.",
            remedy=f"Set {STREAM_ID} to at most 40 letters, digits and underscores.",
        )
    names = {
        "url": _with_certificate(found.values["url"], environment.get(CA_CERTIFICATE, "")),
        "slot": f"penstock_slot_{stream_id}",
        "publication": f"penstock_publication_{stream_id}",
        "publication_mode": "manual" if truth(environment.get(MANUAL_PUBLISHING, "")) else "auto",
    }
    settings = ShapeSettings.standalone(environment, options, state, names)
    return Standalone(settings, state, _listen(environment.get(PROMETHEUS_PORT, "")), found.unknown)


def state_directory(environment: Mapping[str, str], given: Path | str | None) -> Path:
    """Where an instance keeps what it has; the command line's word before the environment's."""
    path = Path(given or environment.get("ELECTRIC_STORAGE_DIR") or STORAGE_DIRECTORY)
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:  # "~name" of nobody
        raise ConfigError(
            f"The storage directory {path} is below the home of a user that is not known here.",
            remedy="Name another one: --storage-dir, or ELECTRIC_STORAGE_DIR.",
        ) from error


def _listen(port: str) -> str:
    if not port:
        return "127.0.0.1:0"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(
            f"{PROMETHEUS_PORT} is not a port.", remedy=f"Set {PROMETHEUS_PORT} to a number up to 65535."
        )
    return f"0.0.0.0:{port}"  # who scrapes metrics comes from another machine, as with Electric


def _with_certificate(url: str, certificate: str) -> str:
    if not certificate:
        return url
    return url + ("&" if "?" in url else "?") + urlencode({"sslrootcert": certificate}, quote_via=quote)
