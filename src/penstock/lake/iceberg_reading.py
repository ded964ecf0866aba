"""Reads an Iceberg table's committed rows as Arrow, through Iceberg's own reader in Spark."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.destinations.iceberg import IcebergTable


def read_iceberg(table: IcebergTable) -> pa.Table:
    """Through the Spark session that the table's catalog was opened with."""
    location = table.metadata_location()
    session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    return session.read.format("iceberg").load(location).toArrow()
