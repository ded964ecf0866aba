"""What Spark needs for Iceberg tables: the jars, and its JVM, handed to the destination.

The jars come from Maven by name, once, into a directory of our own (a shared one may hold half of them),
and are taken from there afterwards without asking anyone. A machine that cannot download names a `jars_dir`
that holds them. Pipelines without Iceberg tables need none of this and start without it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway
from pyspark import SparkContext

from penstock.core.errors import ConfigError, SparkError
from penstock.destinations.iceberg_java import Java

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRES = "org.postgresql:postgresql:42.7.4"
AWS = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
#: By type of catalog, what it needs besides Iceberg itself; Hive's client comes with Spark.
DRIVERS = {"sqlite": (SQLITE,), "postgres": (POSTGRES,), "glue": (AWS,)}

_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def iceberg_conf(packages: Sequence[str], jars_dir: Path | None = None) -> dict[str, str]:
    """Spark settings that bring these packages."""
    return {"spark.sql.extensions": _EXTENSIONS, **_jars(packages, jars_dir)}


def _jars(packages: Sequence[str], jars_dir: Path | None) -> dict[str, str]:
    if jars_dir is not None:
        return {"spark.jars": ",".join(str(_jar_in(jars_dir, package)) for package in packages)}
    directory = ivy_directory()
    resolved = [
        directory / "jars" / f"{package.replace(':', '_', 1).replace(':', '-')}.jar" for package in packages
    ]
    if all(jar.exists() for jar in resolved):
        return {"spark.jars": ",".join(map(str, resolved))}
    return {"spark.jars.packages": ",".join(packages), "spark.jars.ivy": str(directory)}


def _jar_in(directory: Path, package: str) -> Path:
    _, artifact, version = package.split(":")
    found = sorted(directory.glob(f"*{artifact}-{version}.jar"))
    if not found:
        raise ConfigError(
            f"The directory {directory} has no {artifact}-{version}.jar.",
            remedy=f"Put the jar of {package} there, or remove `jars_dir` to have it downloaded.",
        )
    return found[0]


def ivy_directory() -> Path:
    """Where downloaded jars stay."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "penstock" / "ivy"


@lru_cache(1)
def java_in(gateway: JavaGateway) -> Java:
    """Iceberg in this JVM; an error that people can act on if it was started without."""
    jvm = gateway.jvm
    try:
        jvm.java.lang.Class.forName(
            "org.apache.iceberg.CatalogUtil",
            True,
            jvm.java.lang.Thread.currentThread().getContextClassLoader(),
        )
    except Exception as error:
        raise SparkError(
            "The Spark session of this process runs without Iceberg.",
            remedy="Start the sync in a process of its own, or start the session with the Iceberg runtime "
            f"({ICEBERG}).",
        ) from error
    return Java(jvm, gateway, _hadoop_configuration(jvm))


def _hadoop_configuration(jvm: Any) -> Any:
    """The session's, if there is one, and else what it would have: with the settings that Java got."""
    running = SparkContext._active_spark_context
    if running is not None:
        return running._jsc.hadoopConfiguration()
    hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get()
    return hadoop.newConfiguration(jvm.org.apache.spark.SparkConf())
