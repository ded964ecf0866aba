"""The server's process, tied to ours.

It ends with its parent, however that one ends: a small shell waits for the end of a pipe that only
the parent holds open, then stops the server. (PR_SET_PDEATHSIG would fire when the *thread* that
started it ends, and exists on Linux only.)
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.sources.postgres.embedded_binaries import ServerUser

STOP_TIMEOUT_S = 60.0

# $1 the server's process, $2 its postmaster.pid, $3 a directory to remove (or empty).
# The process id alone could by then be somebody else's; the file says whether it is still ours.
_WATCHER = """
cat >/dev/null
running() { [ "$(head -n 1 "$2" 2>/dev/null)" = "$1" ] && kill -0 "$1" 2>/dev/null; }
if running "$1" "$2"; then
  kill -INT "$1"; n=0
  while running "$1" "$2" && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
  running "$1" "$2" && kill -QUIT "$1"
fi
[ -n "$3" ] && rm -rf "$3"
"""


class ServerProcess:
    """A running `postgres`. `remove_with_parent` is deleted if the parent dies without stopping it."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        user: ServerUser,
        *,
        log: Path,
        pid_file: Path,
        remove_with_parent: Path | None,
    ) -> None:
        self._pid_file = pid_file
        with open(log, "wb") as output:
            self._server = subprocess.Popen(
                list(arguments),
                cwd="/",
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in a terminal is for us, not for the server
                **user.process_arguments(),
            )
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "sh", str(self.pid), str(pid_file), str(remove_with_parent or "")],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **user.process_arguments(),
        )

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def running(self) -> bool:
        return self._server.poll() is None

    @property
    def ready(self) -> bool:
        """Whether this very server says that it takes connections (a standby: that it can be read)."""
        try:
            lines = self._pid_file.read_text().splitlines()
        except FileNotFoundError:
            return False
        ours = bool(lines) and lines[0] == str(self.pid)
        return ours and len(lines) >= 8 and lines[7].strip() in ("ready", "standby")

    def end(self, how: signal.Signals) -> None:
        """Send the signal and wait until the server is gone. Also right if it has gone by itself."""
        # First the watcher, with the `cat` that waits on the pipe: the process id is about to be free.
        os.killpg(self._watcher.pid, signal.SIGKILL)
        self._watcher.wait()
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()
        try:
            self._server.send_signal(how)
            self._server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
