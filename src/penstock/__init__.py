"""Penstock: every change of an operational database, exactly once, where it is needed.

`from penstock import Pipeline` is the whole public surface. It is imported when first used, so that
`penstock --help`, the capture process and Spark's Python workers do not load what they do not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline

__all__ = ["Pipeline", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Pipeline":
        from penstock.pipeline import Pipeline

        return Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
