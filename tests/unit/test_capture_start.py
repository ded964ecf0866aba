"""The start of the capture process, which imports in a thread while its spec is awaited."""

from __future__ import annotations

import subprocess
import sys

_PREPARED = """
import sys, threading
from penstock.capture import __main__ as start

class Imported(threading.Event):
    def set(self):
        wanted = {"numba", "psycopg", "penstock.capture.server", "penstock.capture.postgres.source"}
        print(wanted <= set(sys.modules))
        super().set()

is_other = threading.Event()
is_other.set()
start._prepare(Imported(), is_other)
"""


def test_all_that_the_thread_imports_is_there_before_anybody_else_imports() -> None:
    """Else two threads may come into a library's circle of imports from two sides, and find half of it."""
    done = subprocess.run([sys.executable, "-c", _PREPARED], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
