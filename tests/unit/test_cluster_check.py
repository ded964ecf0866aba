"""What executors are asked, and what is made of their answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.errors import ConfigError
from penstock.lake.cluster import Look, Seen, judge, look


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    (tmp_path / "lake" / "probe").mkdir(parents=True)
    (tmp_path / "lake" / "probe" / "driver").touch()
    return tmp_path / "lake" / "probe"


def answer(*directories: Path) -> Seen:
    return look(Look(directories))


def test_an_executor_that_shares_the_directories_is_fit(probe: Path) -> None:
    judge([answer(probe), answer(probe)])


def test_an_executor_without_a_directory_is_named_with_it(probe: Path, tmp_path: Path) -> None:
    seen = answer(probe, tmp_path / "elsewhere" / "probe")
    with pytest.raises(ConfigError, match=f"{seen.machine} does not share {tmp_path / 'elsewhere'} "):
        judge([answer(probe), seen])


def test_a_directory_of_the_same_name_on_another_disk_is_found_out(probe: Path) -> None:
    """What the executor wrote is not there for the driver."""
    seen = answer(probe)
    seen.left[0].unlink()
    with pytest.raises(ConfigError, match="does not share"):
        judge([seen])


def test_another_version_of_the_package_is_refused(probe: Path) -> None:
    with pytest.raises(ConfigError, match=r"has Penstock 0\.0\.1"):
        judge([replace(answer(probe), version="0.0.1")])
