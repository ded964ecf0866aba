"""`python -m penstock.capture`: the capture process.

The first line on stdin is the spec (so no secret is in the arguments), each further line a request;
answers and events are lines on stdout, the log goes to stderr. The process ends with its stdin: a
driver that dies, however, takes its capture along, and the slot becomes free. Ctrl-C in a terminal
reaches the whole group, so SIGINT is left to the driver, which stops us in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
from typing import Any, TextIO

import structlog

_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_ARENA_MAX = -3, -1, -8


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    _reuse_memory()
    # Only our own lines may reach stdout, whatever a library prints.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), name="capture-requests", daemon=True).start()
    _serve(requests, answers)
    sys.stderr.flush()
    # Everything is closed. Taking the interpreter apart would take the time of a small sync.
    os._exit(0)


def _serve(requests: queue.SimpleQueue[str], answers: TextIO) -> None:
    from penstock.capture.server import CaptureServer, error_to_json, log_unexpected
    from penstock.capture.spec import CaptureSpec

    lock = threading.Lock()

    def say(line: dict[str, Any]) -> None:
        with lock, contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(line) + "\n")

    server = CaptureServer(CaptureSpec.from_json(json.loads(requests.get())), say)
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
    with contextlib.suppress(OSError, AttributeError):  # not the GNU C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)


if __name__ == "__main__":
    main()
