"""Write constraints.txt: the newest versions that pyproject.toml allows, with everything they bring along.

Resolved by pip in an environment of its own, so that what happens to be installed is not pinned. Names
and versions only: which index they come from is the machine's business.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "demo,dev,java,kafka,kinesis,mysql,node,peers,shapes"
HEADER = """\
# Exact versions of everything `make venv` and `make bench-peers` install, direct or not.
# To renew: `make constraints` after changing pyproject.toml, then read the difference.
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        report = Path(directory) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        wanted = [f"{ROOT}[{EXTRAS}]", "pip", "setuptools>=77"]
        subprocess.run([f"{directory}/bin/python", "-m", "pip", "install", *options, *wanted], check=True)
        installed = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    pins = {f"{item['name']}=={item['version']}" for item in installed if item["name"] != "penstock"}
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(sorted(pins, key=str.casefold)) + "\n")
    print(f"{len(pins)} versions pinned in constraints.txt", file=sys.stderr)


if __name__ == "__main__":
    main()
