"""`penstock prepare`: what the first start would otherwise wait for, done when something is installed."""

from __future__ import annotations

import time
from importlib import import_module
from importlib.util import find_spec

import typer

from penstock.cli.settings import settings_of

_STREAM_KERNELS = ("event_kernels", "byte_kernels", "time_kernels")


def prepare(context: typer.Context) -> None:
    """Compile what is compiled once, and keep the classes that Spark loads at its start.

    For installers and container images: afterwards every start takes half as long. Nothing depends on it.
    """
    from penstock.lake.class_archive import make_archive

    settings = settings_of(context)
    took: dict[str, float] = {}
    for name, work in (("compiled code", _compile), ("classes of Spark", make_archive)):
        began = time.monotonic()
        with settings.err.status(f"preparing: {name}"):
            work()
        took[name] = round(time.monotonic() - began, 1)
        settings.err.print(f"{name}: ready ({took[name]} s)", markup=False, highlight=False)
    if settings.json:
        settings.emit_json({"seconds": took})


def _compile() -> None:
    from penstock.sources.open import warm_up

    warm_up()
    if find_spec("uvloop") is not None:  # the live lane is an extra; its code is compiled when it is imported
        import_module("penstock.shapes.service")
    for name in _STREAM_KERNELS:
        import_module(f"penstock.streams.encoding.{name}")
