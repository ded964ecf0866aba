"""The processes of a run: capture, and a lane for each that is configured."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.capture.from_config import LAKE_LANE, spec_of
from penstock.capture.spec import ServiceSpec
from penstock.config import Config
from penstock.supervisor.process import Program
from penstock.supervisor.status import CAPTURE


def programs_of(config: Config, config_path: Path, service: ServiceSpec) -> tuple[Program, ...]:
    """Capture, which answers at `service`, then its lanes."""
    capture = spec_of(config, service=service).to_json()
    lake = {
        "config": str(config_path.absolute()),
        "capture": {
            "address": service.address,
            "token": service.token,
            "certificate": service.certificate,
        },
        "warm": config.run.standby == "warm",
    }
    return (
        Program(CAPTURE, (sys.executable, "-m", "penstock.capture"), capture),
        Program(LAKE_LANE, (sys.executable, "-m", "penstock.lake_process"), lake),
    )
