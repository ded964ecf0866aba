"""The destination that a pipeline file names, and what it asks of Spark."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from penstock.config.destination import CatalogConfig, DestinationConfig
from penstock.config.models import Config
from penstock.config.values import revealed
from penstock.destinations.iceberg import IcebergDestination
from penstock.destinations.iceberg_catalog import IcebergSettings
from penstock.destinations.iceberg_java import Java
from penstock.destinations.parquet import ParquetDestination
from penstock.lake.iceberg_session import DRIVERS, ICEBERG, iceberg_conf, java_in
from penstock.lake.session import spark_gateway, spark_session

#: Settings of which Iceberg needs entries of its own.
_LISTS = ("spark.jars", "spark.jars.packages", "spark.sql.extensions")
_IMPLEMENTED_BY = {"sqlite": "jdbc", "postgres": "jdbc"}


def destination_of(config: Config) -> ParquetDestination | IcebergDestination:
    """Java is started only when the first Iceberg table is asked for."""
    destination = config.destination
    if destination.type == "parquet":
        return ParquetDestination(destination.directory)
    return IcebergDestination(iceberg_settings(destination), lambda: java_of(config))


def iceberg_settings(config: DestinationConfig) -> IcebergSettings:
    return IcebergSettings(
        catalog_name=config.catalog.name,
        catalog=catalog_properties(config),
        warehouse=config.directory,
        sets_location=config.catalog.type in ("sqlite", "postgres"),
        properties=config.properties,
        copy_on_write=config.upserts == "copy_on_write",
        format_version=config.format_version,
    )


def java_of(config: Config) -> Java:
    """Iceberg in the JVM of this process, which needs no Spark session for it."""
    return java_in(spark_gateway(config.spark.master, spark_conf(config), config.state / "spark.log"))


def session_of(config: Config) -> SparkSession:
    return spark_session(config.spark.master, spark_conf(config), config.state / "spark.log")


def spark_conf(config: Config) -> dict[str, str]:
    """The Spark settings of a pipeline; what the file says wins, and comes beside ours in a list."""
    destination = config.destination
    if destination.type == "parquet":
        return revealed(config.spark.conf)
    packages = (ICEBERG, *DRIVERS.get(destination.catalog.type, ()))
    return _over(iceberg_conf(packages, destination.jars_dir), revealed(config.spark.conf))


def _over(ours: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    lists = {name: _joined(ours[name], given[name]) for name in _LISTS if name in ours and name in given}
    return {**ours, **given, **lists}


def _joined(*lists: str) -> str:
    """Each entry once."""
    entries = [entry.strip() for each in lists for entry in each.split(",")]
    return ",".join(dict.fromkeys(entry for entry in entries if entry))


def catalog_properties(config: DestinationConfig) -> dict[str, str]:
    """As Iceberg's `CatalogUtil` takes them."""
    catalog = config.catalog
    properties = {
        "type": _IMPLEMENTED_BY.get(catalog.type, catalog.type),
        "warehouse": str(config.directory),
        **_where(catalog, config),
    }
    return {**properties, **revealed(catalog.properties)}


def _where(catalog: CatalogConfig, config: DestinationConfig) -> dict[str, str]:
    uri = catalog.uri.get_secret_value() if catalog.uri is not None else ""
    if catalog.type == "sqlite":
        return {"uri": f"jdbc:sqlite:{config.directory}/catalog.db", "jdbc.schema-version": "V1"}
    if catalog.type == "postgres":
        return {"jdbc.schema-version": "V1", **_jdbc(uri)}
    if catalog.type == "glue":  # else it takes every location for one in S3
        return {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    return {"uri": uri} if uri else {}


def _jdbc(url: str) -> dict[str, str]:
    """A Postgres URL as JDBC wants it: user and password apart."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    place = f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}{query}"
    login = {"jdbc.user": parts.username, "jdbc.password": parts.password}
    return {
        "uri": f"jdbc:postgresql://{place}",
        **{key: unquote(value) for key, value in login.items() if value},
    }
