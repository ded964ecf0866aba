"""Spark starts from the archive of its classes, and as well without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.lake import class_archive
from penstock.lake.session import session_settings

pytestmark = pytest.mark.slow

_START = """
import json, sys
from pathlib import Path
from penstock.lake.session import run_tasks, spark_session
options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
session = spark_session("local[1]", options, Path(sys.argv[1]))
java = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
maps = Path(f"/proc/{java}/maps").read_text()
print(json.dumps({"answer": run_tasks(session, len, [(1, 2)], "count"), "maps": maps}))
"""


def _started(log: Path) -> dict[str, object]:
    ended = subprocess.run(
        [sys.executable, "-c", _START, str(log)], capture_output=True, text=True, check=True
    )
    said: dict[str, object] = json.loads(ended.stdout)
    return said


def test_a_session_maps_the_archive(tmp_path: Path) -> None:
    archive = class_archive.make_archive()
    said = _started(tmp_path / "spark.log")
    assert said["answer"] == [2]
    assert str(archive) in str(said["maps"])


def test_spark_that_is_installed_anew_gets_an_archive_of_its_own_in_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java maps no archive of jars with other times, though they are where they were."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    installed = tmp_path / "pyspark"
    shutil.copytree(Path(pyspark.__file__).parent, installed, copy_function=os.link)
    jars = installed / "jars"
    shutil.rmtree(jars)
    shutil.copytree(Path(pyspark.__file__).parent / "jars", jars, copy_function=shutil.copyfile)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(pyspark, "__file__", str(installed / "__init__.py"))
    before = class_archive.make_archive()
    for jar in jars.glob("*.jar"):
        os.utime(jar)
    archive = class_archive.make_archive()
    assert archive != before
    assert list(archive.parent.iterdir()) == [archive]
    said = _started(tmp_path / "spark.log")
    assert said["answer"] == [2]
    assert str(archive) in str(said["maps"])


def test_an_archive_that_java_cannot_use_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "SharedArchiveFile" not in session_settings("local[1]", {})["spark.driver.extraJavaOptions"]
    broken = class_archive.archive_path()
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"not an archive")
    said = _started(tmp_path / "spark.log")
    assert said["answer"] == [2]
    assert str(broken) not in str(said["maps"])


def test_prepare_does_it_once_and_says_how_long_it_took(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "prepare", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(ended.stdout)["seconds"].keys() == {"compiled code", "classes of Spark"}
    assert class_archive.archive_path().exists()
