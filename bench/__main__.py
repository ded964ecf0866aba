"""`python -m bench`: Penstock against what Postgres' own clients reach on the same machine in the same run.

capture  the change log against `pg_recvlogical` to /dev/null, equal slots on the same write-ahead log
load     a full load to Parquet against `COPY … (FORMAT binary)` to /dev/null on one connection
changes  inserted rows from the slot to the committed table against `pg_recvlogical` on the same log
tables   200 tables of 1,000 rows: seconds per table to discover, load and follow them; no reference

Method. One embedded Postgres, fsync off, on the machine that also runs Penstock, so both share its cores.
Each comparison has a warm-up that is not counted, then rounds: the reference and Penstock one after the
other. The ratio is the median of the rounds' quotients. A Spark start is excluded: the session is there
before a clock starts. CPU seconds and peak memory are those of the whole process tree (driver, Java, Python
workers, capture) without Postgres. After each run the number of committed rows is compared with the source's.

With --check, or CHECK=1 in the environment, the exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench import capturing, changes, load, tables, workload
from bench.command import finish, new_console, parse_arguments, warn_if_busy
from bench.comparison import Comparison
from bench.pipelines import use_server
from bench.references import BinaryCopy, ReceiveLogical

NAMES = ("capture", "load", "changes", "tables")


def main() -> int:
    arguments = parse_arguments("python -m bench", __doc__ or "", NAMES)
    console = new_console()
    warn_if_busy(console)
    comparisons: list[Comparison] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, workload.new_server() as server:
        directory = Path(name)
        use_server(server.url())
        if "capture" in arguments.names:
            comparisons.append(
                capturing.compare(server, arguments.changes, arguments.rounds, directory, console)
            )
        if "load" in arguments.names:
            load.prepare(server, arguments.rows, console)
            copy = BinaryCopy(server)
            comparisons.append(load.compare(copy, arguments.rows, arguments.rounds, directory, console))
        if "changes" in arguments.names:
            with workload.connect(server) as connection:
                changes.prepare(connection)
                receive = ReceiveLogical(server, connection, changes.PUBLICATION)
                comparisons.append(
                    changes.compare(
                        receive, connection, arguments.changes, arguments.rounds, directory, console
                    )
                )
        many = None
        if "tables" in arguments.names:
            with workload.connect(server) as connection:
                many = tables.run(connection, directory, console)
    return finish(console, comparisons, arguments, many)


if __name__ == "__main__":
    sys.exit(main())
