"""The change log as a Spark data source, for a session of your own.

    import penstock.spark

    penstock.spark.register(session)
    changes = session.read.format("penstock").option("config", "penstock.yaml")
    changes.option("stream", "public.orders").load().show()

The session of a pipeline has it already. Options and columns: docs/guides/changes.md.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.lake.data_source import PenstockSource


def register(session: SparkSession) -> None:
    """Let this session read with `format("penstock")`, and `readStream` too. Again does no harm."""
    session.dataSource.register(PenstockSource)
