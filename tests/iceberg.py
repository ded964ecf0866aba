"""Iceberg tables for tests: the jars that the one Spark session of a run is started with, and settings."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.destinations.iceberg import IcebergDestination, IcebergTable
from penstock.destinations.iceberg_catalog import IcebergSettings
from penstock.lake.iceberg_session import ICEBERG, POSTGRES, SQLITE, iceberg_conf, java_in
from penstock.lake.session import spark_session

#: Every pipeline of a test run starts Spark with these, so that whichever is first serves all.
SPARK_CONF = {"spark.driver.memory": "512m", **iceberg_conf((ICEBERG, SQLITE, POSTGRES))}


def session(directory: Path) -> SparkSession:
    return spark_session("local[2]", SPARK_CONF, directory / "spark.log")


def sqlite_destination(directory: Path) -> IcebergDestination:
    catalog = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{directory}/catalog.db",
        "jdbc.schema-version": "V1",
        "warehouse": str(directory),
    }
    return IcebergDestination(
        IcebergSettings("penstock", catalog, directory),
        lambda: java_in(session(directory).sparkContext._gateway),
    )


def rewrite_all(table: IcebergTable) -> int:
    """What any compaction does: Iceberg's own action, in its own commit."""
    java = table.catalog.java
    sessions = java.jvm.org.apache.spark.sql.SparkSession
    sessions.setActiveSession(sessions.getDefaultSession().get())  # of this thread, whoever made it
    actions = java.jvm.org.apache.iceberg.spark.actions.SparkActions.get()
    rewrite = actions.rewriteDataFiles(table.handle.table).option("rewrite-all", "true")
    return int(rewrite.execute().rewrittenDataFilesCount())
