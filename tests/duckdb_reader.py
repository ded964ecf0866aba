"""DuckDB as a reader of Iceberg tables: its own extension reads metadata, manifests and deletes.

The extension fits one version of DuckDB to the last digit, and is in wheels for fewer of them than DuckDB
itself. So the pair has a directory of its own, downloaded once per machine, and runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.debian import made_once, run

_VERSION = "1.5.5"
_PACKAGES = ("duckdb", "duckdb-extension-avro", "duckdb-extension-iceberg")
_READ = """
import pathlib, sys, duckdb
packages, metadata, file = map(pathlib.Path, sys.argv[1:])
assert packages in pathlib.Path(duckdb.__file__).parents, duckdb.__file__
alone = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
connection = duckdb.connect(config=alone)
for name in ("avro", "iceberg"):
    [extension] = packages.glob(f"duckdb_extension_{name}/extensions/*/{name}.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
connection.execute("SET TimeZone = 'UTC'")
connection.execute(f"COPY (SELECT * FROM iceberg_scan('{metadata}')) TO '{file}' (FORMAT parquet)")
"""


def copy_rows(metadata: str, file: Path) -> None:
    """Write what DuckDB reads of the table with this metadata file to a Parquet file."""
    packages = made_once(f"duckdb-iceberg-{_VERSION}", _download)
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(packages), metadata.removeprefix("file:"), str(file)],
        env={**os.environ, "PYTHONPATH": str(packages)},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def _download(directory: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    run([*pip, "--target", str(directory), *(f"{package}=={_VERSION}" for package in _PACKAGES)])
