"""What a catalog of each type is asked for, and the jars it takes: also of those that no test can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.lake.destination import catalog_properties, spark_conf
from penstock.lake.iceberg_session import AWS, ICEBERG, POSTGRES, SQLITE

EXPECTED: list[tuple[dict[str, Any], dict[str, str], tuple[str, ...]]] = [
    ({"type": "sqlite"}, {"type": "jdbc", "jdbc.schema-version": "V1"}, (SQLITE,)),
    (
        {"type": "postgres", "uri": "postgresql://me:a%40b@db:5433/lake?sslmode=require"},
        {
            "type": "jdbc",
            "uri": "jdbc:postgresql://db:5433/lake?sslmode=require",
            "jdbc.user": "me",
            "jdbc.password": "a@b",
        },
        (POSTGRES,),
    ),
    ({"type": "hadoop"}, {"type": "hadoop"}, ()),
    (
        {"type": "rest", "uri": "https://catalog", "properties": {"warehouse": "sales", "token": "t"}},
        {"type": "rest", "uri": "https://catalog", "warehouse": "sales", "token": "t"},
        (),
    ),
    (
        {"type": "hive", "uri": "thrift://metastore:9083"},
        {"type": "hive", "uri": "thrift://metastore:9083"},
        (),
    ),
    (
        {"type": "glue", "properties": {"glue.id": "123456789012", "client.region": "eu-central-1"}},
        {
            "type": "glue",
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            "glue.id": "123456789012",
            "client.region": "eu-central-1",
        },
        (AWS,),
    ),
]


def config_of(catalog: dict[str, Any], directory: Path, *, jars_dir: str | None, **spark: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"type": "postgres", "url": "postgresql://app@db/shop"},
            "destination": {
                "type": "iceberg",
                "warehouse": str(directory / "lake"),
                "catalog": catalog,
                "jars_dir": jars_dir,
            },
            "state": str(directory / "state"),
            "spark": spark,
            "streams": [{"table": "public.orders"}],
        }
    )


@pytest.mark.parametrize(("catalog", "properties", "drivers"), EXPECTED, ids=lambda each: str(each)[:20])
def test_a_catalog_gets_its_properties_and_its_jars(
    catalog: dict[str, Any], properties: dict[str, str], drivers: tuple[str, ...], tmp_path: Path
) -> None:
    config = config_of(catalog, tmp_path, jars_dir=str(tmp_path))
    asked = catalog_properties(config.destination)
    assert {"warehouse": str(tmp_path / "lake")} | properties == {
        name: value for name, value in asked.items() if name in {"warehouse", *properties}
    }
    for package in (ICEBERG, *drivers):
        with pytest.raises(ConfigError, match=package.split(":")[1]):
            spark_conf(config)
        _, artifact, version = package.split(":")
        (tmp_path / f"{artifact}-{version}.jar").touch()
    jars = spark_conf(config)["spark.jars"].split(",")
    assert len(jars) == 1 + len(drivers)


@pytest.mark.parametrize("are_downloaded", [True, False], ids=["downloaded", "by name"])
def test_jars_and_extensions_of_the_pipeline_file_come_beside_those_of_iceberg(
    are_downloaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "penstock" / "ivy" / "jars"
    directory.mkdir(parents=True)
    names = [package.replace(":", "_", 1).replace(":", "-") for package in (ICEBERG, SQLITE)]
    jars = [str(directory / f"{name}.jar") for name in names]
    if are_downloaded:
        for jar in jars:
            Path(jar).touch()
    conf = {
        "spark.jars": "/own.jar",
        "spark.jars.packages": f"org.example:one:1, {SQLITE},",
        "spark.sql.extensions": "org.example.Extensions",
        "spark.executor.memory": "4g",
    }
    asked = spark_conf(config_of({"type": "sqlite"}, tmp_path, jars_dir=None, conf=conf))
    assert asked["spark.executor.memory"] == "4g"
    extensions = asked["spark.sql.extensions"].split(",")
    assert [name.rpartition(".")[2] for name in extensions] == ["IcebergSparkSessionExtensions", "Extensions"]
    if are_downloaded:
        assert asked["spark.jars"].split(",") == [*jars, "/own.jar"]
        assert asked["spark.jars.packages"] == conf["spark.jars.packages"]
    else:
        assert asked["spark.jars"] == "/own.jar"
        assert asked["spark.jars.packages"].split(",") == [ICEBERG, SQLITE, "org.example:one:1"]
