"""`penstock prepare` and the live lane: what it has compiled, no start waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.serving import ShapeServer, followed, synced

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_COMPILE = "from penstock.cli.prepare import _compile\nif __name__ == '__main__': _compile()"


def test_a_prepared_start_of_shapes_compiles_nothing(database: Database, tmp_path: Path) -> None:
    """Nothing is compiled by others there: the machine code is kept in a directory of this test's own."""
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "machine code")}
    program = tmp_path / "compile.py"
    program.write_text(_COMPILE)
    subprocess.run([sys.executable, str(program)], env={**os.environ, **cache}, check=True, timeout=900)
    database.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    database.execute("CREATE TABLE chosen (id int PRIMARY KEY)")
    database.execute("INSERT INTO items SELECT i, 'note ' || i FROM generate_series(1, 100) AS i")
    environment = {**cache, "NUMBA_DEBUG_CACHE": "1"}
    wheres = ("id > 0", "note ILIKE '%o%'", "id IN (SELECT id FROM chosen)")
    with ShapeServer(database.url, tmp_path / "shapes", environment=environment) as server:
        server.wait_until_active()
        lasts = {where: synced(server, table="items", where=where)[0] for where in wheres}
        database.execute("INSERT INTO chosen VALUES (200)")
        database.execute("INSERT INTO items VALUES (200, 'more')")
        for where, last in lasts.items():
            assert followed(server, last, "200", table="items", where=where)
        said = server.log.read_text()
    assert "[cache] data loaded from" in said
    compiled = [line for line in said.splitlines() if "[cache] data saved to" in line]
    assert not compiled, compiled[:5]
