"""For tests of `penstock verify`: hands that reach into the files of a table, and sources of other kinds than
Postgres, each with `orders`, which has a value of every kind, and changes of every kind to it."""

from __future__ import annotations

import datetime as dt
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bson import json_util

from penstock import Pipeline
from tests.conftest import wait_until
from tests.mongo_server import MongoServer
from tests.mongo_shop import Shop, order
from tests.mysql_server import MysqlServer
from tests.pipelines import DESTINATIONS, PipelineUnderTest


def data_files(pipeline: PipelineUnderTest, stream: str) -> list[Path]:
    """What the table's rows are in, by the paths that readers use."""
    if pipeline.on_iceberg:
        found = sorted(pipeline.warehouse.glob(f"{stream.replace('.', '/')}/data/*.parquet"))
        return [path for path in found if "file_path" not in pq.read_schema(path).names]  # no deletes
    return sorted(Pipeline.from_yaml(pipeline.file).table(stream).path.glob("*.parquet"))


def plant_in(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of a file behind everybody's back, in its place."""
    changed = change(pq.ParquetFile(path).read())
    with open(path, "wb") as sink:  # the same file under all its names
        pq.write_table(changed, sink)


def without_end(content: bytes) -> bytes:
    return content[:-20]


def without_beginning(content: bytes) -> bytes:
    """The first page's header is no header any more; the file's own, and its footer, are."""
    return content[:4] + b"\xff" * 200 + content[204:]


def damage_file(path: Path, damage: Callable[[bytes], bytes]) -> None:
    content = damage(path.read_bytes())
    with open(path, "wb") as sink:  # the same file under all its names
        sink.write(content)


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(name), column)


def with_value(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table.column(name).to_pylist()
    values[row] = value
    return with_column(table, name, pa.array(values, table.schema.field(name).type))


def another(scalar: pa.Scalar) -> Any:
    """A value of the same type that is not the same by as little as can be."""
    value = scalar.as_py()
    if value is None:
        assert pa.types.is_string(scalar.type), "of a column that is empty throughout"
        return "{}"
    if pa.types.is_float32(scalar.type):
        return float(np.nextafter(np.float32(value), np.float32(np.inf)))
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    if isinstance(value, dt.datetime):
        return value + dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return value + dt.timedelta(days=1)
    if isinstance(value, dt.time):
        return value.replace(microsecond=value.microsecond + 1)
    if isinstance(value, Decimal):
        return value + Decimal((0, (1,), value.as_tuple().exponent))  # type: ignore[arg-type]
    return value + {int: 1, str: " ", bytes: b"\0"}[type(value)]


class Verifiable(ABC):
    """`orders` of a source, by numbers from 0 on. `key`: the column that names a row."""

    stream: str
    key: str

    @abstractmethod
    def source(self, name: str) -> dict[str, Any]:
        """For the pipeline file."""

    @abstractmethod
    def fill(self, rows: int) -> None: ...

    @abstractmethod
    def change(self) -> None:
        """Of each ten rows one is deleted, one is another key's, and one has other values."""

    @abstractmethod
    def write(self, connection: Any, number: int) -> None:
        """One transaction of a writer, the first with the number 1."""

    @abstractmethod
    def connected(self) -> Any:
        """What a writer is given, as a context."""

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def rows(self, shown: Sequence[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        """What the source has by its own driver, and what readers are shown, so that they can be compared."""

    def assert_same(self, pipeline: PipelineUnderTest) -> None:
        shown = pq.read_table(pipeline.path(self.stream)).to_pylist()
        source, table = self.rows([row for row in shown if row.get("_deleted_at") is None])
        assert sorted(table) == sorted(source)

    def pipeline(self, directory: Path, destination: str, **stream: Any) -> PipelineUnderTest:
        more = {"load": {"rows_per_chunk": 250}, **stream.pop("settings", {})}
        return PipelineUnderTest(
            directory,
            "",
            [{"table": self.stream, **stream} if stream else self.stream],
            {"source": self.source(directory.name), "destination": DESTINATIONS[destination], **more},
        )

    @contextmanager
    def writing(self) -> Iterator[Callable[[], None]]:
        """Until the block ends; what it is given returns when there is more than before."""
        ended, failures, written = threading.Event(), list[BaseException](), [0]

        def write() -> None:
            try:
                with self.connected() as connection:
                    while not ended.is_set():
                        self.write(connection, written[0] + 1)
                        written[0] += 1
            except BaseException as error:
                failures.append(error)

        def wait_for_more() -> None:
            wanted = written[0] + 1
            wait_until(lambda: written[0] >= wanted or bool(failures), "the writer to go on")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            wait_for_more()
            yield wait_for_more
        finally:
            ended.set()
            thread.join()
        assert failures == []


_MYSQL_ORDERS = (
    "CREATE TABLE shop.orders (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(40), paid DECIMAL(12,2), "
    "at DATETIME(6), seen TIMESTAMP(3) NULL, day DATE, clock TIME(2), raw VARBINARY(20), rate DOUBLE, "
    "ratio FLOAT, small TINYINT UNSIGNED, kind ENUM('a', 'b'), flags SET('x', 'y'), bits BIT(12), made YEAR, "
    "body JSON, note TEXT CHARACTER SET latin1)"
)


class MysqlOrders(Verifiable):
    stream, key = "shop.orders", "id"

    def __init__(self, server: MysqlServer) -> None:
        self.server = server

    def source(self, name: str) -> dict[str, Any]:
        return {"type": "mysql", "url": f"mysql://root@127.0.0.1:{self.server.port}/shop", "name": name}

    def fill(self, rows: int) -> None:
        values = ", ".join(
            f"({n}, {'NULL' if n % 7 == 6 else repr(f'näme {n}')}, {n}.37, "
            f"'2026-01-01 00:00:{n % 60:02d}.000123', '2026-01-01 01:00:{n % 60:02d}.5', "
            f"'2026-02-{n % 28 + 1:02d}', '12:00:{n % 60:02d}.25', x'{n:06X}', "
            f"{n} / 7, {n} / 3, {n % 200}, '{'ab'[n % 2]}', 'x,y', {n % 4000}, {2000 + n % 100}, "
            f"'{{\"k\": {n}}}', 'nöte {n}')"
            for n in range(rows)
        )
        self.server.execute(
            "DROP DATABASE IF EXISTS shop",
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            _MYSQL_ORDERS,
            f"INSERT INTO shop.orders VALUES {values}",
            "ANALYZE TABLE shop.orders",
        )

    def change(self) -> None:
        self.server.execute(
            "UPDATE shop.orders SET id = id + 100000, name = 'moved' WHERE id % 10 = 2",
            "DELETE FROM shop.orders WHERE id % 10 = 1",
            "UPDATE shop.orders SET at = at + INTERVAL 1 HOUR WHERE id % 10 = 3",
        )

    def write(self, connection: Any, number: int) -> None:
        low = 20_000 + 10 * number
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"INSERT INTO orders (id, name) VALUES ({low}, 'new'), ({low + 1}, 'new')")
            cursor.execute(f"UPDATE orders SET rate = rate + 1 WHERE id > 500 AND id % 97 = {number % 97}")
            cursor.execute(f"DELETE FROM orders WHERE id = {low - 50}")
            cursor.execute(f"UPDATE orders SET id = id + 1000000 WHERE id = {low - 89}")
            cursor.execute("COMMIT")

    def connected(self) -> Any:
        return self.server.connect("shop")

    def count(self) -> int:
        [(rows,)] = self.server.rows("SELECT COUNT(*) FROM shop.orders")
        return int(rows)

    def rows(self, shown: Sequence[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        names = ("id", "name", "paid", "at", "rate", "small")
        found = self.server.rows(f"SELECT {', '.join(names)} FROM shop.orders")
        source = [tuple(str(value) for value in row) for row in found]
        return source, [tuple(str(row[name]) for name in names) for row in shown]


class MongoOrders(Verifiable):
    key = "_id"

    def __init__(self, server: MongoServer, shop: Shop, layout: str) -> None:
        self.server, self.shop, self.layout = server, shop, layout
        self.stream = f"{shop.name}.orders"

    def source(self, name: str) -> dict[str, Any]:
        return {
            "type": "mongodb",
            "url": self.server.url,
            "name": f"{self.shop.name}_{name}",
            "database": self.shop.name,
            "layout": self.layout,
        }

    def fill(self, rows: int) -> None:
        self.shop["orders"].drop()
        self.shop["orders"].insert_many([order(number) for number in range(rows)])

    def change(self) -> None:
        orders = self.shop["orders"]
        moved = list(orders.find({"number": {"$mod": [10, 2]}}))
        orders.delete_many({"number": {"$mod": [10, 2]}})
        orders.insert_many([{**order(each["number"] + 100_000), "name": "moved"} for each in moved])
        orders.delete_many({"number": {"$mod": [10, 1]}})
        orders.update_many({"number": {"$mod": [10, 3]}}, {"$inc": {"rate": 1.0}})

    def write(self, connection: Any, number: int) -> None:
        orders = connection
        orders.insert_many([order(20_000 + 10 * number), order(20_001 + 10 * number)])
        # The same documents again and again, so that the log shows later states than its times.
        for _ in range(3):
            orders.update_many({"number": {"$gt": 500, "$lt": 540}}, {"$inc": {"rate": 1.0}})
        some = {"$gt": 500, "$mod": [97, number % 97]}
        orders.update_many({"number": some}, {"$set": {"name": f"name {number}"}})
        orders.delete_one({"number": 20_000 + 10 * (number - 5)})

    @contextmanager
    def connected(self) -> Iterator[Any]:
        yield self.shop["orders"]

    def count(self) -> int:
        return int(self.shop["orders"].count_documents({}))

    def rows(self, shown: Sequence[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        found = list(self.shop["orders"].find())
        if self.layout == "document":
            return [bson.encode(each) for each in found], [
                bson.encode(json_util.loads(row["document"])) for row in shown
            ]
        names = ("_id", "number", "name", "rate")
        source = [tuple(str(each.get(name)) for name in names) for each in found]
        return source, [tuple(str(row[name]) for name in names) for row in shown]
