"""Programs of Debian's packages for tests, downloaded and unpacked once per machine, never installed.

An apt with directories of its own reads the archive that the machine's own sources name, so a test needs
nobody who installs something for it. What comes from the machine's own release runs with the machine's C
library and everything else of its own; what comes from another one has to be started by its own loader.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

LIBRARIES = "usr/lib/x86_64-linux-gnu"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PLACES = "/usr/sbin:/usr/bin:/usr/local/sbin:/opt/homebrew/bin"
#: What must be the machine's: its loader is used, and the two have to fit to the last digit of their version.
_C_LIBRARY = ("libc6_*.deb",)
_INSTALL_S = 600


def program(name: str, packages: Sequence[str], path: str) -> str:
    """The machine's own `name`; where there is none, the one at `path` in the unpacked packages."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_PLACES}")
    if found is not None:
        return found
    if (release := _release()) is None:
        pytest.skip(f"there is no {name} here, and no Debian to get it from: install {packages[0]}")
    made = made_once(
        f"{name}-{release}", lambda directory: _make_program(directory, packages, release, name, path)
    )
    return str(made / name)


def unpacked(name: str, packages: Sequence[str], suite: str) -> Path:
    """The directory in which packages of any release lie as if it were the machine's root."""
    return made_once(name, lambda directory: _unpack(packages, suite, directory)) / "root"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A directory, made by whoever comes first; what was begun and not ended is begun anew."""
    target = _cache() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(f"{target.name}.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            begun = target.with_name(f"{target.name}.begun")
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir()
            make(begun)
            begun.rename(target)
    return target


def run(command: Sequence[str], script: str | None = None) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_INSTALL_S, input=script
    )
    assert done.returncode == 0, f"{command[0]}: {(done.stdout + done.stderr)[-4000:]}"


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "penstock" / "databases"


def _release() -> str | None:
    """The name of the machine's own release, if it is Debian's."""
    if shutil.which("apt-get") is None or not Path(_KEYRING).exists():
        return None
    text = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=(\w+)$", text, re.MULTILINE)
    return found.group(1) if found and re.search(r"^ID=debian$", text, re.MULTILINE) else None


def _make_program(directory: Path, packages: Sequence[str], release: str, name: str, path: str) -> None:
    """What starts it: its libraries are where only it looks for them. The directory gets its name later."""
    _unpack(packages, release, directory, without=_C_LIBRARY)
    root = directory / "root"
    libraries = sorted({str(file.parent.relative_to(root)) for file in root.rglob("lib*.so*")})
    starter = directory / name
    starter.write_text(
        "#!/bin/sh\n"
        'root="$(dirname "$(readlink -f "$0")")"/root\n'
        f'export LD_LIBRARY_PATH="{":".join(f"$root/{place}" for place in libraries)}"\n'
        'export FONTCONFIG_FILE="$root/fonts.conf"\n'
        f'exec "$root/{path}" "$@"\n'
    )
    starter.chmod(0o755)
    (root / "fonts.conf").write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">'
        '<fontconfig><dir prefix="relative">usr/share/fonts</dir><cachedir prefix="xdg">fontconfig</cachedir>'
        "</fontconfig>\n"
    )


def _unpack(packages: Sequence[str], suite: str, directory: Path, without: Sequence[str] = ()) -> None:
    """Download packages and all they need, as if nothing were installed, and unpack them below `root`."""
    assert Path(_KEYRING).exists(), "needs Debian's keys: install the package debian-archive-keyring"
    apt, root = directory / "apt", directory / "root"
    for name in ("lists/partial", "archives/partial", "log"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_archive()} {suite} main\n")
    options = {
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::status": apt / "status",
        "Dir::State::extended_states": apt / "extended_states",
        "Dir::Log": apt / "log",
        "APT::Sandbox::User": "",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    command = ["apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in options.items())]
    run([*command, "update"])
    run([*command, "--download-only", "-t", suite, "install", *packages])
    archives = apt / "archives"
    left_out = {found for pattern in without for found in archives.glob(pattern)}
    for package in sorted(set(archives.glob("*.deb")) - left_out):
        run(["dpkg", "-x", str(package), str(root)])
    shutil.rmtree(apt)


def _archive() -> str:
    """Where this machine gets Debian from, by its own sources."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(place.read_text() for place in places if place.is_file())
    found = re.search(r"^(?:URIs:|deb(?:\s+\[[^\]]*\])?)\s+(\S*/debian)/?(?:\s|$)", text, re.MULTILINE)
    assert found is not None, "the sources of apt on this machine do not say where Debian is"
    return found.group(1)
