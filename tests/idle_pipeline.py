"""A pipeline that nobody runs, of a source that nobody reaches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def idle_pipeline(directory: Path, streams: Sequence[str] = ("public.orders",), **sections: Any) -> Path:
    """Its file; `sections` are further ones."""
    file = directory / "penstock.yaml"
    content = {
        "source": {"type": "postgres", "url": "postgresql://nowhere/db"},
        "destination": {"type": "parquet", "path": "./lake"},
        "state": "./state",
        "streams": [*streams],
        **sections,
    }
    file.write_text(yaml.safe_dump(content))
    return file
