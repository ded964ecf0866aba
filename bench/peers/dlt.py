"""dlt as the reference of a full load."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from bench.comparison import Run
from bench.peers.worker import PeerError, Worker


class Dlt:
    name = "dlt (sql_database, connectorx, Parquet)"

    def __init__(self, url: str, directory: Path) -> None:
        if importlib.util.find_spec("dlt") is None or importlib.util.find_spec("connectorx") is None:
            raise PeerError("dlt and connectorx are not installed; `make bench-peers` installs them.")
        self._directory = directory / "dlt"
        self._directory.mkdir()
        self.worker = Worker(
            "dlt", [sys.executable, "-m", "bench.peers.dlt_worker"], [url], self._directory / "log"
        )

    def load(self, table: str, rows: int) -> Run:
        output = self._directory / "output"
        run = self.worker.run(f"{table} {output}")
        shutil.rmtree(output)
        if run.rows != rows:
            raise PeerError(f"dlt wrote {run.rows:,} rows instead of {rows:,}.")
        return run
