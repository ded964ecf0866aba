"""`python -m bench.peers`: Penstock beside dlt (full load) and the Debezium embedded engine (CDC).

load     dlt's `sql_database` with the connectorx backend to Parquet, and Penstock, load the same table
changes  Debezium reads a slot and discards its JSON; Penstock takes the same changes to a committed table
binlog   mysql-replication makes Python objects of a MySQL binary log's rows; Penstock decodes them into Arrow

Same method as `python -m bench`. Both tools stay warm in a process of their own between rounds; imports and
the start of their processes are not counted. Debezium needs Maven and a Java development kit (17 or later);
its jars come from Maven Central the first time.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench import changes, load, workload
from bench.command import finish, new_console, parse_arguments, warn_if_busy
from bench.comparison import Bars, Comparison
from bench.peers import debezium_engine, mysql_replication
from bench.peers.debezium_engine import DebeziumEngine
from bench.peers.dlt import Dlt
from bench.peers.worker import PeerError
from bench.pipelines import use_server

NAMES = ("load", "changes", "binlog")
LOAD_GOAL = Bars(ratio_min=2.0, cheaper=True)
CHANGES_GOAL = Bars(ratio_min=2.5)


def main() -> int:
    arguments = parse_arguments("python -m bench.peers", __doc__ or "", NAMES)
    console = new_console()
    warn_if_busy(console)
    comparisons: list[Comparison] = []
    if "binlog" in arguments.names:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            comparisons += mysql_replication.compare(arguments.rounds, Path(name), console)
    if set(arguments.names) == {"binlog"}:
        return finish(console, comparisons, arguments)
    try:
        if "changes" in arguments.names:
            console.log("building the Debezium program (Maven downloads its jars the first time)")
            debezium_engine.build()
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, workload.new_server() as server:
            directory = Path(name)
            use_server(server.url())
            if "load" in arguments.names:
                load.prepare(server, arguments.rows, console)
                peer = Dlt(server.url(), directory)
                with peer.worker:
                    comparisons.append(
                        load.compare(peer, arguments.rows, arguments.rounds, directory, console, LOAD_GOAL)
                    )
            if "changes" in arguments.names:
                with workload.connect(server) as connection:
                    changes.prepare(connection)
                    engine = DebeziumEngine(server, connection, changes.PUBLICATION, changes.TABLE, directory)
                    with engine.worker:
                        comparisons.append(
                            changes.compare(
                                engine,
                                connection,
                                arguments.changes,
                                arguments.rounds,
                                directory,
                                console,
                                CHANGES_GOAL,
                            )
                        )
    except PeerError as error:
        console.print(f"[red]{error}[/red]")
        return 2
    return finish(console, comparisons, arguments)


if __name__ == "__main__":
    sys.exit(main())
