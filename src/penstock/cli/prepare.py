"""`penstock prepare`: what the first start would otherwise wait for, done when something is installed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context

import typer

from penstock.cli.settings import settings_of
from penstock.core.errors import ConfigError

_OF_STREAMS = (
    "encoding.event_kernels",
    "encoding.byte_kernels",
    "encoding.time_kernels",
    "kafka.partitions",
    "kinesis.aggregation",
)


def prepare(context: typer.Context) -> None:
    """Compile what is compiled once, and keep the classes that Spark loads at its start.

    For installers and container images: afterwards every start takes half as long. Nothing depends on it.
    Where there is no Java, as shapes and streams need none, Spark's classes are left out.
    """
    from penstock.lake.class_archive import make_archive

    settings = settings_of(context)
    took: dict[str, float] = {}
    work_of: dict[str, Callable[[], object]] = {"compiled code": _compile}
    if _has_java():
        work_of["classes of Spark"] = make_archive
    else:
        settings.err.print("classes of Spark: left out, there is no Java", markup=False, highlight=False)
    for name, work in work_of.items():
        began = time.monotonic()
        with settings.err.status(f"preparing: {name}"):
            work()
        took[name] = round(time.monotonic() - began, 1)
        settings.err.print(f"{name}: ready ({took[name]} s)", markup=False, highlight=False)
    if settings.json:
        settings.emit_json({"seconds": took})


def _has_java() -> bool:
    from penstock.lake.java import ensure_java

    try:
        ensure_java()
    except ConfigError:
        return False
    return True


def _compile() -> None:
    """In a process for each core: compiling is all that they do."""
    from penstock.sources.open import compiled_modules

    modules = compiled_modules() + [f"penstock.streams.{name}" for name in _OF_STREAMS]
    modules += ["penstock.values.text_casts", "penstock.verify.canonical"]
    if find_spec("uvloop") is not None:  # the live lane is an extra
        modules.append("penstock.shapes.service")
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for done in [pool.submit(_compile_module, module) for module in reversed(modules)]:
            done.result()


def _compile_module(name: str) -> None:
    """Code that has its types at hand is compiled when it is imported, other code when it is called."""
    module = import_module(name)
    if hasattr(module, "warm_up"):
        module.warm_up()
