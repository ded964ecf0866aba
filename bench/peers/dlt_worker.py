"""Loads tables with dlt: `sql_database` with the connectorx backend into Parquet files, all by its defaults.

A process of its own that stays warm between loads. The connection URL is the first line on standard input
(never an argument); each further line is one request, `schema.table directory`, answered by one line of JSON.
Only `pipeline.run` is on the clock: imports are not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import dlt
import pyarrow.parquet as pq
from dlt.destinations import filesystem
from dlt.sources.sql_database import sql_table

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
os.environ["RUNTIME__LOG_LEVEL"] = "ERROR"


def load(url: str, table: str, directory: Path) -> dict[str, float]:
    schema, name = table.split(".", 1)
    started = time.perf_counter()
    pipeline = dlt.pipeline(
        "bench_peer",
        pipelines_dir=str(directory / "pipelines"),
        destination=filesystem(bucket_url=f"file://{directory / 'lake'}"),
        dataset_name="bench",
    )
    resource = sql_table(
        credentials=url, table=name, schema=schema, backend="connectorx", backend_kwargs={"conn": url}
    )
    pipeline.run(resource, loader_file_format="parquet", write_disposition="replace")
    seconds = time.perf_counter() - started
    files = (directory / "lake" / "bench" / name).glob("**/*.parquet")
    return {"seconds": seconds, "rows": sum(pq.read_metadata(file).num_rows for file in files)}


def main() -> None:
    url = sys.stdin.readline().strip()
    for line in sys.stdin:
        table, directory = line.split(maxsplit=1)
        print(json.dumps(load(url, table, Path(directory.strip()))), flush=True)


if __name__ == "__main__":
    main()
