"""Capture processes for syncs in this process, forked from one that has imported all they need.

`python -m penstock.capture` takes half a CPU-second to import and load what it needs, three quarters of what
a sync of a test takes. Here one process does that once and then only forks: each capture begins with the code
loaded, and with nothing else of those before it. It gets its own stdin, stdout and environment, and is ended
and killed as any other. That the command itself starts is shown by syncs in processes of their own, by
`penstock run` and by the tests of capture, which start it as people do.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, cast
from unittest.mock import patch

from penstock.capture.client import CaptureProcess

_SIZE = struct.Struct("!I")


class ForkedCapture:
    """As much of a `Popen` as the client of capture asks for."""

    def __init__(self, nursery: Nursery, environment: Mapping[str, str]) -> None:
        child_in, own_in = os.pipe()
        own_out, child_out = os.pipe()
        self._status, status = socket.socketpair()
        try:
            nursery.fork(environment, [child_in, child_out, 2, status.fileno()])
            self.pid = int(_line(self._status))
        finally:
            os.close(child_in)
            os.close(child_out)
            status.close()
        self.stdin: IO[str] = os.fdopen(own_in, "w", encoding="utf-8", buffering=1)
        self.stdout: IO[str] = os.fdopen(own_out, encoding="utf-8")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["penstock.capture"], timeout or 0)
            self.returncode = int(_line(self._status))
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks; it ends with the one that started it."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )

    def fork(self, environment: Mapping[str, str], files: Sequence[int]) -> None:
        said = json.dumps([dict(environment), str(Path.cwd())]).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        with self._asking:
            self._socket.sendmsg([_SIZE.pack(len(said))], rights)
            self._socket.sendall(said)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class ForkedCaptureProcess(CaptureProcess):
    """The client of capture, with a process that was forked."""

    nursery: ClassVar[Nursery | None] = None
    _starting: ClassVar[threading.Lock] = threading.Lock()

    def begin(self) -> None:
        if self._process is None:
            with self._starting:
                nursery = ForkedCaptureProcess.nursery = self.nursery or Nursery()
            self._process = cast("subprocess.Popen[str]", ForkedCapture(nursery, os.environ))
            self._knows_spec = False


@contextlib.contextmanager
def forked_captures() -> Iterator[None]:
    """Have syncs in this process fork their captures."""
    from penstock import sync

    with patch.object(sync, "CaptureProcess", ForkedCaptureProcess):
        yield
    if ForkedCaptureProcess.nursery is not None:
        ForkedCaptureProcess.nursery.close()
        ForkedCaptureProcess.nursery = None


def _line(connection: socket.socket) -> bytes:
    said = b""
    while not said.endswith(b"\n"):
        more = connection.recv(64)
        if not more:
            raise EOFError("the process that forks captures is gone")
        said += more
    return said


def main() -> None:
    from penstock.capture import __main__ as capture

    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    sys.meta_path.insert(0, capture._KeptOut)
    from penstock import logs
    from penstock.capture.open import import_likely

    load_compiled = import_likely()
    import penstock.capture.server

    del penstock
    logs.configure("json")
    load_compiled()
    gc.freeze()
    waited: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([connection.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell(waited)
        if connection.fileno() in ready and not _fork(connection, waited, capture):
            return


def _fork(connection: socket.socket, waited: dict[int, socket.socket], capture: Any) -> bool:
    head, rights, _, _ = connection.recvmsg(_SIZE.size, socket.CMSG_SPACE(16))
    if not head:
        return False
    files = array.array("i")
    for _, _, data in rights:
        files.frombytes(data)
    said = b""
    while len(said) < _SIZE.unpack(head)[0]:
        said += connection.recv(1 << 16)
    status = socket.socket(fileno=files[3])
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in (connection, status, *waited.values()):
            other.close()
        for target, file in enumerate(files[:3]):
            os.dup2(file, target)
            os.close(file)
        environment, directory = json.loads(said)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        with contextlib.suppress(BaseException):
            capture.main()
        os._exit(1)
    for file in files[:3]:
        os.close(file)
    waited[pid] = status
    status.sendall(b"%d\n" % pid)
    return True


def _tell(waited: dict[int, socket.socket]) -> None:
    """How those that have ended did."""
    while waited:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with waited.pop(pid) as listener, contextlib.suppress(OSError):
            listener.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
