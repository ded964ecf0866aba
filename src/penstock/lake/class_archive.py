"""An archive of the classes that Spark loads at its start, made once and mapped into memory from then on.

A Spark session starts by reading and checking some ten thousand classes from jars. Java can keep the result
in a file (a dynamic CDS archive); a start then takes half the CPU: measured, 3.8 seconds instead of 6.9.

The archive is for one Java and one Spark, as they were installed: both are in its name, with the times of
their files, by which Java refuses one that does not fit and starts as if there were none. Where Spark is
installed anew, a new archive takes the place of the old one. It is written beside its place and moved there
whole, so nobody maps half of it. Without it everything works as well, only later: `make_archive` is for when
something is installed.
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
    java, spark = _java(), Path(pyspark.__file__).parent
    found = java.stat()
    cache = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(cache) if cache else Path.home() / ".cache") / "penstock" / "classes"
    jars = sorted(
        (jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in (spark / "jars").glob("*.jar")
    )
    installed = _digest((str(java), found.st_size, found.st_mtime_ns, jars))
    return directory / f"spark-{pyspark.__version__}-{_digest(str(spark))}-{installed}.jsa"


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
    for other in archive.parent.glob(f"{archive.stem.rpartition('-')[0]}-*.jsa"):
        if other != archive:  # of the Spark that was here before; who has it mapped keeps it
            other.unlink(missing_ok=True)
    return archive


def _digest(of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()[:12]


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
