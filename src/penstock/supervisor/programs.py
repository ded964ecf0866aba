"""The processes of a run: capture, a lane for each that is configured, and the console."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.capture.from_config import spec_of
from penstock.capture.spec import LAKE_LANE, CaptureSpec, ServiceSpec
from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.shapes.settings import SHAPES_LANE, ShapeSettings
from penstock.shapes.standalone import Standalone
from penstock.streams.libraries import require_library
from penstock.supervisor.process import Program
from penstock.supervisor.status import CAPTURE, CONSOLE

_CORES_MIN = 5  # for `execution: auto`: below that the core that sends waits for no other


def programs_of(config: Config, config_path: Path, service: ServiceSpec, admin: Path) -> tuple[Program, ...]:
    """Capture, which answers at `service`, then its lanes; the live one takes orders at `admin`."""
    capture = spec_of(config, service=service)
    lanes = [_lake(config, config_path, service)]
    if config.lanes.shapes is not None:
        lanes.append(_shapes(ShapeSettings.of_pipeline(config, os.environ), capture, service, admin))
    lanes += [_stream(lane, config, config_path, service) for lane in config.lanes.streams]
    if config.console.enabled:
        # It is told where this instance says how it is when that is known.
        lanes.append(_program(CONSOLE, "penstock.console", {"config": str(config_path.absolute())}))
    return _capture(capture), *lanes


def shape_programs(standalone: Standalone, service: ServiceSpec, admin: Path) -> tuple[Program, ...]:
    """Capture and the live lane, without a pipeline file."""
    capture = standalone.capture(service)
    return _capture(capture), _shapes(standalone.settings, capture, service, admin)


def _capture(spec: CaptureSpec) -> Program:
    return _program(CAPTURE, "penstock.capture", spec.to_json())


def _lake(config: Config, config_path: Path, service: ServiceSpec) -> Program:
    spec = {
        "config": str(config_path.absolute()),
        "capture": _reached_at(service),
        "warm": config.run.standby == "warm",
    }
    return _program(LAKE_LANE, "penstock.lake_process", spec)


def _shapes(settings: ShapeSettings, capture: CaptureSpec, service: ServiceSpec, admin: Path) -> Program:
    if find_spec("httptools") is None:
        raise ConfigError(
            "What serves shapes over HTTP is not installed.", remedy="Run: pip install 'penstock[shapes]'."
        )
    spec = {
        "settings": settings.to_json(),
        "capture": _reached_at(service),
        "log": str(capture.log_directory),
        "admin": str(admin),
    }
    return _program(SHAPES_LANE, "penstock.shapes", spec)


def _stream(lane: str, config: Config, config_path: Path, service: ServiceSpec) -> Program:
    require_library(lane)
    spec = {"lane": lane, "config": str(config_path.absolute()), "capture": _reached_at(service)}
    execution = config.lanes.streams[lane].execution
    by_spark = execution == "spark" or (execution == "auto" and (os.cpu_count() or 1) >= _CORES_MIN)
    return _program(lane, "penstock.streams_process" if by_spark else "penstock.streams", spec)


def _reached_at(service: ServiceSpec) -> dict[str, str | None]:
    return {"address": service.address, "token": service.token, "certificate": service.certificate}


def _program(name: str, module: str, spec: dict[str, Any]) -> Program:
    return Program(name, (sys.executable, "-m", module), spec)
