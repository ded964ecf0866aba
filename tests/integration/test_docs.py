"""What README and docs/ show works: code blocks below a `<!-- test: … -->` mark are taken from there."""

from __future__ import annotations

import contextlib
import re
import shlex
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from penstock import Pipeline
from penstock.config import Config
from penstock.core.errors import StaleTermError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.events import Events
from penstock.streams.publisher import Standing, Term
from tests.conftest import Database, with_password
from tests.serving import ShapeServer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PASSWORD = "change me"  # as the pages have it

_MARKED = re.compile(r"<!-- test: (?P<mark>[a-z ]+) -->\n```[a-z]+\n(?P<code>.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    page: Path
    mark: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.code.strip().splitlines()[-1][:40]}"


BLOCKS = [
    Block(page, found["mark"], found["code"])
    for page in PAGES
    for found in _MARKED.finditer(page.read_text(encoding="utf-8"))
]


def blocks(mark: str) -> list[Block]:
    return [block for block in BLOCKS if block.mark == mark]


def only(mark: str) -> str:
    [block] = blocks(mark)
    return block.code


def shop(database: Database) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL);"
        "CREATE TABLE customers (id bigint PRIMARY KEY, name text);"
        "CREATE TABLE events (id bigint PRIMARY KEY, kind text);"
        "CREATE TABLE countries (code text PRIMARY KEY);"
        "CREATE TABLE migrations (name text);"
        "INSERT INTO orders SELECT i, (ARRAY['placed', 'sent'])[i % 2 + 1] FROM generate_series(1, 100) AS i;"
        "INSERT INTO customers VALUES (1, 'Ada'); INSERT INTO events VALUES (1, 'visit');"
        "INSERT INTO countries VALUES ('DE')"
    )


def write_pipeline(directory: Path, text: str, url: str, name: str) -> Path:
    """The page's pipeline file with the test's database, and names of its own at the source."""
    content = yaml.safe_load(text)
    content["source"] |= {"url": url, "slot": name, "publication": name}
    content["spark"] = {"master": "local[2]", "conf": {"spark.driver.memory": "512m"}}
    file = directory / "penstock.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_the_pages_have_examples_of_every_kind() -> None:
    assert {block.mark for block in BLOCKS} == {
        "pipeline",
        "python",
        "shell",
        "sql least",
        "yaml least",
        "yaml shapes",
        "yaml streams",
        "python target",
        "sql auto",
        "sql refresh",
        "sql shapes",
    }


def test_a_pipeline_file_with_the_live_lane_is_one(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(only("yaml shapes"))
    lane = Config.load(tmp_path / "penstock.yaml", {"PGPASSWORD": "x", "SHAPE_SECRET": "y"}).lanes.shapes
    assert lane is not None
    assert (lane.port, lane.insecure) == (3000, False)


def test_a_pipeline_file_with_stream_lanes_is_one(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(only("yaml streams"))
    environment = {"PGPASSWORD": "x", "KAFKA_PASSWORD": "y", "MASK_SALT": "z"}
    lanes = Config.load(tmp_path / "penstock.yaml", environment).lanes.streams
    assert list(lanes) == ["kafka", "kinesis", "file"]


def test_the_target_that_the_guide_adds_holds_every_event_once(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(only("python target"), names)
    made = Events(
        StreamId("public", "orders"),
        "shop.public.orders",
        np.array([5, 6]),
        np.array([0, 0]),
        np.frombuffer(b"cu", np.uint8),
        np.array([1, 2]),
        pa.array([b"[1]", b"[1]"], pa.binary()),
        pa.array([b"{}", None], pa.binary()),
    )
    first = names["SqliteTarget"](tmp_path / "events.sqlite")
    assert first.open(Term("shop", Lsn(1), "system", 1)) is None
    first.write(made)
    first.commit(Standing(Lsn(7), Lsn(1), "system", 1))
    first.write(made)
    first.abort()
    second = names["SqliteTarget"](tmp_path / "events.sqlite")
    held = second.open(Term("shop", Lsn(2), "system", 1))
    assert held is not None
    assert held.position == Lsn(7)
    with pytest.raises(StaleTermError):
        first.write(made)
    for target in (first, second):
        target.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "events.sqlite")) as database:
        assert database.execute("SELECT tx, op, kind FROM events").fetchall() == [(5, 0, "c"), (6, 0, "u")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors that headings get: lower case, blanks as hyphens, no other signs."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_tests_named_in_the_guarantees_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    assert len(named) > 40
    assert named <= there, f"not there: {sorted(named - there)}"


def test_every_example_of_reading_works(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the README's own pipeline file. In one test: they share the sync."""
    shop(database)
    file = write_pipeline(tmp_path, only("pipeline"), database.url, database.name)
    monkeypatch.chdir(tmp_path)
    report = Pipeline.from_yaml(file).sync()
    assert [stream.stream for stream in report.streams] == [
        "public.countries",
        "public.customers",
        "public.events",
        "public.orders",
    ]
    examples = blocks("python")
    assert len(examples) >= 5
    for block in examples:
        exec(compile(block.code, str(block), "exec"), {"__name__": "example"})  # raises with the page's name
    for block in blocks("shell"):
        assert run_shell(block.code) == str(Pipeline.from_yaml(file).table("public.orders").path)
    Pipeline.from_yaml(file).teardown()


def run_shell(code: str) -> str:
    """The lines after a `$`, run by the `penstock` of this environment."""
    [line] = [line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")]
    command, *arguments = shlex.split(line)
    assert command == "penstock"
    run = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def role(database: Database) -> str:
    """The name that stands for `penstock_reader`: roles belong to the whole server."""
    database.roles.append(f"{database.name}_reader")
    return database.roles[-1]


def grant(database: Database, mark: str, role: str) -> str:
    """Run the page's statements for this database and role; the URL of that role."""
    statements = re.sub(r"\bshop\b", database.name, only(mark)).replace("penstock_reader", role)
    statements = statements.replace("PUBLICATION penstock ", f"PUBLICATION {database.name} ")
    database.execute(statements.replace("shop_owner", f"{database.name}_owner"))
    return with_password(database.server.url(database.name, user=role, password="x"), PASSWORD)


def test_the_least_a_role_needs_is_enough(database: Database, role: str, tmp_path: Path) -> None:
    shop(database)
    url = grant(database, "sql least", role)
    pipeline = Pipeline.from_yaml(write_pipeline(tmp_path, only("yaml least"), url, database.name))
    assert [finding for finding in pipeline.check() if finding.level != "ok"] == []
    pipeline.sync()
    database.execute("UPDATE orders SET status = 'lost' WHERE id <= 10; DELETE FROM orders WHERE id = 100")
    assert sum(stream.changes for stream in pipeline.sync().streams) == 11
    assert pipeline.table("public.orders").to_arrow().num_rows == 99
    assert pipeline.status().retained_wal_bytes is not None
    database.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}")
    assert any("may not read" in finding.message for finding in pipeline.check())
    leave(database, role)


def test_a_member_of_the_owner_lets_penstock_keep_the_publication(
    database: Database, role: str, tmp_path: Path
) -> None:
    shop(database)
    owner = f"{database.name}_owner"
    database.roles.append(owner)
    database.execute(f"CREATE ROLE {owner}; GRANT USAGE ON SCHEMA public TO {owner}")
    for table in ("orders", "customers"):
        database.execute(f"ALTER TABLE {table} OWNER TO {owner}")
    url = grant(database, "sql auto", role)
    text = only("yaml least").replace("publication_mode: manual", "publication_mode: auto")
    pipeline = Pipeline.from_yaml(write_pipeline(tmp_path, text, url, database.name))
    assert [finding for finding in pipeline.check() if finding.level != "ok"] == []
    pipeline.sync()
    assert pipeline.table("public.orders").to_arrow().num_rows == 100
    assert len(pipeline.teardown()) == 2
    leave(database, role, owner)


def test_a_full_refresh_needs_no_more_than_to_read(database: Database, role: str, tmp_path: Path) -> None:
    shop(database)
    url = grant(database, "sql refresh", role)
    text = only("yaml least")
    refresh = text.replace(
        "[public.orders, public.customers]", "[{table: public.orders, mode: full_refresh}]"
    )
    assert refresh != text
    pipeline = Pipeline.from_yaml(write_pipeline(tmp_path, refresh, url, database.name))
    assert [finding for finding in pipeline.check() if finding.level == "error"] == []
    pipeline.sync()
    assert pipeline.table("public.orders").to_arrow().num_rows == 100
    leave(database, role)


def leave(database: Database, *roles: str) -> None:
    """So that the roles can be dropped once the database is gone."""
    names = ", ".join(roles)
    database.execute(f"REASSIGN OWNED BY {names} TO CURRENT_USER; DROP OWNED BY {names}")


def test_the_pipeline_file_of_the_readme_says_what_it_means(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(only("pipeline"))
    config = Config.load(tmp_path / "penstock.yaml", {"PGPASSWORD": "p@ss/word"})
    assert config.source.url.get_secret_value() == "postgresql://app:p%40ss%2Fword@db:5432/shop"
    assert config.exclude == ["public.migrations"]


def test_a_role_that_owns_nothing_serves_what_was_published_for_it(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE secret (id int PRIMARY KEY)")
    role, url = database.create_role("LOGIN REPLICATION")
    manual = {"ELECTRIC_MANUAL_TABLE_PUBLISHING": "true"}
    server = ShapeServer(url, tmp_path, environment=manual)
    statements = only("sql shapes").replace("_default", f"_{server.stream_id}")
    database.execute(statements.replace("penstock_reader", role))
    database.execute(f"GRANT SELECT ON secret TO {role}")
    with server:
        server.wait_until_active()
        first = server.get(table="items", offset="-1")
        assert first.status == 200
        last = server.get(table="items", offset=first.offset, handle=first.handle)
        database.execute("INSERT INTO items VALUES (7)")
        live = server.get(table="items", offset=last.offset, handle=last.handle, live="true")
        assert [item["value"] for item in live.json() if "value" in item] == [{"id": "7"}]
        refused = server.get(table="secret", offset="-1")
        assert refused.status == 503
        assert "publication" in refused.body.decode()
        assert server.get(table="items", offset="-1").handle == first.handle
        assert server.stop() == 0
    leave(database, role)
