"""`python -m bench.tail_reader ADDRESS LOG END`: a lane that follows the tail and keeps nothing.

Says "ready" when it could begin, begins at the position that comes on stdin, and says how many rows it was
given up to END, and how many of them by the log.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.capture.remote import RemoteCapture
from penstock.capture.tail_reader import TailReader
from penstock.core.position import Lsn


def main() -> None:
    address, log, end = sys.argv[1], Path(sys.argv[2]), Lsn.parse(sys.argv[3])
    rows = by_log = 0
    with RemoteCapture(address, "discarding") as capture:
        print("ready", flush=True)
        after = Lsn.parse(sys.stdin.readline().strip())
        for found in TailReader(capture, log).follow(after):
            given = sum(piece.rows.num_rows for piece in found.pieces)
            rows += given
            by_log += given if found.at is None else 0
            if found.end >= end:
                break
    print(rows, by_log, flush=True)


if __name__ == "__main__":
    main()
