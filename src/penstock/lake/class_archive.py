"""An archive of the classes that Spark loads at its start, made once and mapped into memory from then on.

A Spark session starts by reading and checking some ten thousand classes from jars. Java can keep the result
in a file (a dynamic CDS archive); a start then takes half the CPU: measured, 3.8 seconds instead of 6.9.

The archive is for one Java and one Spark: both are in its name, and Java itself refuses one that does not fit
and starts as if there were none. It is written beside its place and moved there whole, so nobody maps half of
it. Without it everything works as well, only later: `make_archive` is for when something is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from penstock.core.errors import SparkError
from penstock.lake.java import ensure_java

_MAKE_TIMEOUT_S = 300.0


def archive_options() -> str:
    """What Java is told to use the archive; nothing if there is none for this Java and this Spark."""
    archive = archive_path()
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto" if archive.exists() else ""


def archive_path() -> Path:
    """Where the archive of this Java and this Spark is, or would be."""
    java = _java()
    found = java.stat()
    of = f"{java}:{found.st_size}:{found.st_mtime_ns}:{pyspark.__version__}:{Path(pyspark.__file__).parent}"
    cache = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(cache) if cache else Path.home() / ".cache") / "penstock" / "classes"
    return directory / f"spark-{pyspark.__version__}-{hashlib.sha256(of.encode()).hexdigest()[:16]}.jsa"


def make_archive() -> Path:
    """Make it, if it is not there: starts a session of its own and lets it run a small job."""
    archive = archive_path()
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        fresh = Path(directory) / "classes.jsa"
        made = subprocess.run(
            [sys.executable, "-m", __name__, str(fresh)],
            capture_output=True,
            timeout=_MAKE_TIMEOUT_S,
            check=False,
        )
        if made.returncode != 0 or not fresh.exists():
            raise SparkError(
                "Java made no archive of Spark's classes.",
                detail="Spark starts without it as well, only slower.",
                remedy="Look whether `java -version` says 17 or newer, and whether the disk is full.",
            )
        os.replace(fresh, archive)
    return archive


def _java() -> Path:
    ensure_java()
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    assert found is not None, "or ensure_java would have said so"
    return Path(found).resolve()


def _load_classes(archive: Path) -> None:
    """Start a session as pipelines do, use what every sync uses, and have Java write down what it loaded."""
    from penstock.lake.session import run_tasks, spark_session

    options = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
    session = spark_session("local[2]", options, archive.with_name("spark.log"))
    run_tasks(session, len, [(), ()], "load classes")
    gateway = session.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    session.stop()
    # It writes the archive when it ends, and it ends with its stdin.
    java.stdin.close()
    java.wait(_MAKE_TIMEOUT_S)


if __name__ == "__main__":
    _load_classes(Path(sys.argv[1]))
