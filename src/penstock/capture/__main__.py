"""`python -m penstock.capture`: the capture process.

The first line on stdin is the spec, so no secret is in the arguments. With a `service` in it capture is
always on: it answers lanes there and has a channel to the supervisor. Without one it serves a sync: each
further line on stdin is a request, answers and events are lines on stdout. The log goes to stderr.

Either way the process ends with its stdin: a driver that dies, however, takes its capture along, and the slot
becomes free. Ctrl-C in a terminal reaches the whole group, so SIGINT is left to the driver, which stops us
in order.

A sync of few changes waits for this process more than for anything else, so the start is made short: what it
will need is imported and compiled code loaded while the spec is still awaited, libraries that others import
only because they are installed are kept out, and nobody looks for garbage among what stays for ever. What is
got ready is of Postgres. Another source has its modules imported when that is over: two threads that import
from different ends of a library whose modules import each other find half of them (seen with numba).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import signal
import sys
import threading
from importlib import import_module
from typing import Any, TextIO

from penstock.channel import Channel
from penstock.heap import set_heap


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _reuse_memory()
    gc.disable()
    sys.meta_path.insert(0, _KeptOut)
    imported, is_other = threading.Event(), threading.Event()
    start = threading.Thread(target=_prepare, args=(imported, is_other), name="capture-start", daemon=True)
    start.start()
    first_line = sys.stdin.readline()
    if not first_line:
        os._exit(0)
    spec = json.loads(first_line)
    channel = None if spec["service"] is None else Channel(first_line)
    if channel is not None:
        channel.state("starting")
    if spec["source"]["type"] != "postgres":
        is_other.set()
        start.join()
    imported.wait()
    if channel is not None:
        code = _stay(channel)
    else:
        signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
        _serve_sync(first_line)
        code = 0
    sys.stderr.flush()
    # Everything is closed. Taking the interpreter apart would take the time of a small sync.
    os._exit(code)


class _KeptOut:
    """A finder of modules that finds these nowhere.

    PyArrow asks for pandas with the first array it makes, structlog for rich with its first import. Neither
    is used here, and they were a third of what the imports cost: 0.3 of 0.9 CPU-seconds.
    """

    NAMES = ("pandas", "rich")

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        if name in cls.NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _prepare(imported: threading.Event, is_other: threading.Event) -> None:
    try:
        from penstock import logs
        from penstock.capture.open import import_likely

        load_compiled = import_likely()
        import_module("penstock.capture.server")
        logs.configure("json")
    finally:
        imported.set()  # whoever imports it next raises the same
    try:
        if not is_other.is_set():
            load_compiled()
    finally:
        gc.freeze()
        gc.enable()


def _stay(channel: Channel) -> int:
    from penstock.capture.always import AlwaysCapture
    from penstock.capture.spec import CaptureSpec

    return AlwaysCapture(CaptureSpec.from_json(channel.spec), channel).run()


def _serve_sync(first_line: str) -> None:
    # Only our own lines may reach stdout, whatever a library prints.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), name="capture-requests", daemon=True).start()
    _serve(first_line, requests, answers)


def _serve(first_line: str, requests: queue.SimpleQueue[str], answers: TextIO) -> None:
    from penstock.capture.server import CaptureServer, error_to_json, log_unexpected
    from penstock.capture.spec import CaptureSpec

    lock = threading.Lock()

    def say(line: dict[str, Any]) -> None:
        with lock, contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(line) + "\n")

    server = CaptureServer(CaptureSpec.from_json(json.loads(first_line)), say)
    while True:
        request = json.loads(requests.get())
        try:
            result = server.carry_out(request["request"], request.get("arguments", {}))
            say({"id": request["id"], "result": result})
        except Exception as error:
            log_unexpected(error)
            say({"id": request["id"], "error": error_to_json(error)})
        if request["request"] == "stop":
            return


def _read_requests(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    # Whatever is under way is either committed or will be done again: nothing needs to be tidied up.
    os._exit(0)


def _reuse_memory() -> None:
    """Keep freed memory of batches for the next batch instead of giving it back to the system.

    With the C library's defaults each batch maps, zeroes and unmaps its megabytes anew: measured, 0.9
    CPU-seconds per million rows. One arena, so that memory freed by one thread serves another.
    """
    set_heap(arenas=1, mapped_from=32 << 20, trimmed_from=64 << 20)


if __name__ == "__main__":
    main()
