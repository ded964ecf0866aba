"""`examples/shapes-react` in a real Chromium: rows change on the page as they are written to the table.

By Debian's `chromium`, or another one that PENSTOCK_CHROMIUM names. With PENSTOCK_SCREENSHOT=path the
picture of the README is taken.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Database, wait_until
from tests.node import NodeProcess, chromium, installed, program
from tests.ports import free_port
from tests.serving import ShapeServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = _ROOT / "examples" / "shapes-react"
_WATCH = _ROOT / "tests" / "browser" / "watch.mjs"
_BUILD_S = 120


@contextmanager
def app(directory: Path, server: ShapeServer) -> Iterator[str]:
    """The example, built and served as its README says; its address."""
    shutil.copytree(_EXAMPLE, directory, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (directory / "node_modules").symlink_to(installed(_EXAMPLE) / "node_modules")
    assert server.secret is not None
    environment = {**os.environ, "PENSTOCK_URL": server.url, "ELECTRIC_SECRET": server.secret}
    vite = [program("node"), "node_modules/vite/bin/vite.js"]
    subprocess.run([*vite, "build"], cwd=directory, check=True, capture_output=True, timeout=_BUILD_S)
    port = free_port()
    serve = [*vite, "preview", "--host", "127.0.0.1", "--port", str(port), "--strictPort"]
    with subprocess.Popen(serve, cwd=directory, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.send_signal(signal.SIGKILL)


def test_rows_change_on_the_page_as_they_are_written(database: Database, tmp_path: Path) -> None:
    browser = chromium()
    database.execute((_EXAMPLE / "items.sql").read_text())
    with (
        ShapeServer(database.url, tmp_path / "shapes", secret="not for browsers") as server,
        app(tmp_path / "app", server) as address,
        NodeProcess(_WATCH, browser) as page,
    ):
        server.wait_until_active()

        def shown() -> list[list[str]]:
            rows: list[list[str]] = page.ask("rows", selector="tbody tr")
            return rows

        def wanted() -> list[list[str]]:
            query = "SELECT id::text, title, price::text, CASE WHEN done THEN '✓' ELSE '' END FROM items"
            return [list(row) for row in database.query(f"{query} ORDER BY id")]

        def opened() -> bool:
            try:
                page.ask("open", url=address)
                return bool(page.ask("text", selector="h1") == "Items")
            except AssertionError:  # the server of the page is not up yet
                return False

        wait_until(opened, "the page")
        wait_until(lambda: shown() == wanted(), "the first rows")
        database.execute("UPDATE items SET done = true, price = price * 1.1 WHERE id = 3")
        database.execute("INSERT INTO items VALUES (6, 'Draft tube', 5400, false)")
        database.execute("DELETE FROM items WHERE id = 4")
        wait_until(lambda: shown() == wanted(), "the changes")
        assert page.ask("text", selector="[data-testid=count]").startswith("5 in the table, 3 done.")
        database.execute("UPDATE items SET title = 'Guide vanes, set of 20' WHERE id = 2")
        wait_until(lambda: page.ask("count", selector="tr.new") > 0, "a row that has changed to light up")
        if picture := os.environ.get("PENSTOCK_SCREENSHOT"):
            page.ask("screenshot", path=str(Path(picture).absolute()))
