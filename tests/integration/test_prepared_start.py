"""After `penstock prepare` no start waits for a compiler: what is compiled is kept, and nothing is added.

Every compiled function keeps its machine code in numba's cache, one file for each kind of arguments. So a
cache that is empty before `prepare` and the same after capture, shapes and encoders have worked, says that
none of them compiled anything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.serving import ShapeServer, followed, rows, synced

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

_PREPARE = [sys.executable, "-c", "from penstock.cli.main import main; main()", "prepare"]
_PREPARE_TIMEOUT_S = 1500


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that only `penstock prepare` has filled."""
    cache = tmp_path_factory.mktemp("compiled")
    elsewhere = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    done = subprocess.run(
        _PREPARE,
        env={**os.environ, **elsewhere, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=_PREPARE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(_kept(cache)) > 200
    return cache


def test_capture_and_shapes_compile_nothing_after_prepare(
    database: Database, tmp_path: Path, prepared: Path
) -> None:
    before = _kept(prepared)
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, part int, note text, amount numeric, at timestamptz, "
        "flag bool, document jsonb, bytes bytea, ratio float8)"
    )
    database.execute("CREATE TABLE chosen (part int PRIMARY KEY)")
    database.execute("INSERT INTO chosen VALUES (1)")
    database.execute(
        "INSERT INTO items SELECT i, i % 3, 'note ' || i, i / 3.0, now(), i % 2 = 0, '{\"a\": 1}', "
        "'\\x00', i / 7.0 FROM generate_series(1, 1000) AS i"
    )
    shapes = [
        {"table": "items"},
        {"table": "items", "where": "part = 1"},
        {"table": "items", "where": "part = 1 AND note ILIKE '%9%' OR amount > 5.5", "replica": "full"},
        {"table": "items", "where": "id > 10 AND flag", "columns": "id,note"},
        {"table": "items", "where": "part IN (SELECT part FROM chosen)"},
    ]
    environment = {"NUMBA_CACHE_DIR": str(prepared)}
    with ShapeServer(database.url, tmp_path / "shapes", environment=environment) as server:
        server.wait_until_active()
        begun = [synced(server, **shape) for shape in shapes]
        with database.connect(autocommit=False) as connection:
            connection.execute("UPDATE items SET note = note || ' 9', amount = NULL WHERE id % 10 = 1")
            connection.execute("DELETE FROM items WHERE id % 10 = 2")
        database.execute("INSERT INTO chosen VALUES (2)")
        database.execute("INSERT INTO items VALUES (5000, 1, 'note 9', 9, now(), true)")
        for shape, (last, messages) in zip(shapes, begun, strict=True):
            assert rows([*messages, *followed(server, last, "5000", **shape)])
        assert server.stop() == 0
    assert _kept(prepared) == before


def test_encoders_and_what_sends_events_compile_nothing_after_prepare(prepared: Path) -> None:
    before = _kept(prepared)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(prepared)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.prepared_encoders"],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert _kept(prepared) == before


def _kept(cache: Path) -> dict[str, int]:
    """Files of machine code, and when each was written."""
    return {
        str(path.relative_to(cache)): path.stat().st_mtime_ns
        for path in cache.rglob("*.nb?")
        if path.is_file()
    }
