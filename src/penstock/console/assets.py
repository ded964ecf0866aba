"""The page and its parts, as they are in the package: read once, told apart by content, and nothing else is
served.

They are plain modules of JavaScript, a style sheet and drawings, written by hand. There is no step that
builds them, so what is read here is what runs, and nothing is fetched from elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE = "index.html"


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    kind: str
    tag: str


def read_assets() -> dict[str, Asset]:
    found = {}
    for file in files("penstock.console").joinpath("assets").iterdir():
        kind = _KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found
