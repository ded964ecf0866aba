"""The notebooks in docs/examples run from top to bottom, and are kept without what they printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs" / "examples").glob("*.ipynb"))


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_is_a_notebook() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["change_log.ipynb"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_is_kept_without_outputs(notebook: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code_cells(notebook))


@pytest.fixture
def pipeline(database: Database, make: MakePipeline) -> PipelineUnderTest:
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, status text)")
    made = make(["public.orders"])
    made.sync()
    database.execute("INSERT INTO orders SELECT n, 'placed' FROM generate_series(1, 10) n")
    database.execute("UPDATE orders SET status = 'sent' WHERE id <= 3; DELETE FROM orders WHERE id = 1")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_runs_from_top_to_bottom(
    pipeline: PipelineUnderTest, notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = yaml.safe_load(pipeline.file.read_text())
    # A query's workers do not stand where the notebook does: paths in it are whole.
    lake = "warehouse" if pipeline.on_iceberg else "path"
    for place, key in ((content["destination"], lake), (content, "state")):
        place[key] = str(pipeline.directory / place[key])
    pipeline.file.write_text(yaml.safe_dump(content))
    monkeypatch.chdir(pipeline.directory)
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(code_cells(notebook)):
        code = "".join(cell["source"]).replace('"penstock.yaml"', repr(str(pipeline.file)))
        exec(
            compile(
                code.replace("orders-history", str(pipeline.directory / "history")), f"cell {number}", "exec"
            ),
            names,
        )
    assert names["changes"].count() == 14
    assert names["newer"].count() == 0
    assert names["spark"].read.parquet(str(pipeline.directory / "history")).count() == 14
