"""What a Python worker of Spark does between two tasks."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

IN_A_WORKER = """
import gc, importlib, sys, zipimport
from penstock.lake.worker import leave_little_to_do
sys.path.insert(0, sys.argv[1])
import first_module
leave_little_to_do()
assert not [each for each in sys.path_importer_cache.values() if isinstance(each, zipimport.zipimporter)]
assert gc.get_freeze_count() > 0
importlib.invalidate_caches()
import second_module
assert second_module.__file__.startswith(sys.argv[1])
cycle = []
cycle.append(cycle)
del cycle
leave_little_to_do()
assert gc.collect() > 0, "what later tasks leave behind is still collected"
"""


def test_a_worker_keeps_importing_from_zip_files_and_collecting_garbage(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as modules:
        modules.writestr("first_module.py", "")
        modules.writestr("second_module.py", "")
    subprocess.run([sys.executable, "-c", IN_A_WORKER, str(archive)], check=True)
