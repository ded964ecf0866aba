"""docs/reference is what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_reference", ROOT / "scripts" / "generate_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_page_is_stale(generator: ModuleType) -> None:
    stale = [path.name for path in generator.stale_pages()]
    assert stale == [], "run python scripts/generate_reference.py"


def test_a_stale_page_is_found(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generator, "DIRECTORY", tmp_path)
    assert generator.main(["--check"]) == 1
    assert "configuration.md is stale" in capsys.readouterr().out
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    (tmp_path / "types.md").write_text("something else")
    assert generator.main(["--check"]) == 1
