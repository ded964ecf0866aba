"""The Debezium embedded engine as the reference of change data capture; its JSON is discarded.

Built by Maven from `debezium/` beside this file. Its settings are kind to it: pgoutput without schemas in
the JSON, no statistics, and a larger queue and batch than the default; warnings are not logged.
One Java process reads all slots, so that counted rounds meet compiled code. The clock is the engine's: from
its start, connecting included, to the last event.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from bench.comparison import Run
from bench.peers.worker import PeerError, Worker
from bench.workload import Connection
from penstock.sources.postgres.embedded import EmbeddedPostgres

_PROJECT = Path(__file__).with_name("debezium")
_BUILT = Path(__file__).parents[1] / "results" / "debezium"  # as in the POM
_RELEASE_TIMEOUT_S = 60.0
_SETTINGS = {
    "name": "bench",
    "topic.prefix": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "10000",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
    "statistics.metrics.enabled": "false",
    "advanced.metrics.enable": "false",
    "message.prefix.exclude.list": ".*",  # what Penstock's own syncs emit into the log is no change
    "database.hostname": "127.0.0.1",
    "database.user": "postgres",
    "database.dbname": "postgres",
}


class DebeziumEngine:
    name = "Debezium embedded engine"

    def __init__(
        self,
        server: EmbeddedPostgres,
        connection: Connection,
        publication: str,
        table: str,
        directory: Path,
    ) -> None:
        self._connection = connection
        settings = {
            **_SETTINGS,
            "database.port": str(server.port),
            "database.password": server.password,
            "publication.name": publication,
            "table.include.list": table,
        }
        command = [
            _java(), "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp", os.pathsep.join([str(_BUILT / "debezium-peer.jar"), str(_BUILT / "libraries" / "*")]),
            "bench.ReadSlots",
        ]  # fmt: skip
        lines = [f"{name}={value}" for name, value in settings.items()]
        self.worker = Worker("Debezium", command, [*lines, ""], directory / "debezium.log")

    def create_slot(self, slot: str) -> None:
        self._connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])

    def read(self, slot: str, end: str, rows: int) -> Run:
        """`end` is not needed: the engine is stopped at the last of `rows` events."""
        run = self.worker.run(f"{slot} {rows}")
        if run.rows != rows:
            raise PeerError(f"Debezium gave {run.rows:,} events instead of {rows:,}.")
        self._advance(slot, end)
        return run

    def _advance(self, slot: str, end: str) -> None:
        # The engine acknowledges in its own time, and not always before it stops: without this, the
        # next reading of the same slot might begin with events that were already counted.
        deadline = time.monotonic() + _RELEASE_TIMEOUT_S
        while self._is_active(slot):
            if time.monotonic() > deadline:
                raise PeerError(f"Debezium did not let go of slot {slot}.")
            time.sleep(0.05)
        self._connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [slot, end])

    def _is_active(self, slot: str) -> bool:
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        return self._connection.execute(query, [slot]).fetchone() == (True,)


def build() -> None:
    """Build the Java program with Maven, if it is not there yet or older than its source."""
    jar = _BUILT / "debezium-peer.jar"
    sources = [path for path in _PROJECT.rglob("*") if path.is_file()]
    if jar.exists() and jar.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerError(
            "Debezium is built with Maven, and there is no `mvn` on the PATH. Install Maven and a Java "
            "development kit (17 or later), or run `python -m bench.peers load` for dlt alone."
        )
    result = subprocess.run(
        [maven, "--quiet", "--batch-mode", "--file", str(_PROJECT / "pom.xml"), "package"],
        check=False,
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        raise PeerError("Maven could not build the Debezium program:\n" + result.stdout[-2000:])


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise PeerError("Debezium needs Java 17 or later; none was found. Set JAVA_HOME.")
    return java
