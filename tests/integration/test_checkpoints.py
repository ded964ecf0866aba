"""Checkpoints in an object store, against servers that answer as S3 and as Google Cloud Storage do."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector

from penstock.capture.client import CaptureProcess
from penstock.core.position import Lsn
from penstock.ledger.checkpoint import CheckpointFile
from penstock.ledger.checkpoint_history import Leader
from penstock.ledger.checkpoint_store import LEFT_BEHIND_MAX, ObjectStore
from tests.captured import read_now
from tests.conftest import Database, wait_until
from tests.gcs_server import BUCKET, GcsServer
from tests.integration.test_capture import spec
from tests.s3_server import CREDENTIALS, S3Server

pytestmark = pytest.mark.integration


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with S3Server(tmp_path / "s3.log") as server:
        yield server


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer() as server:
        found = server.credentials(tmp_path / "credentials.json")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(found))
        yield server


def names(s3: S3Server, directory: str) -> list[str]:
    found = s3.files().get_file_info(FileSelector(f"bucket/{directory}", allow_not_found=True))
    return sorted(each.base_name for each in found if each.is_file)


def content(s3: S3Server, key: str) -> dict[str, object]:
    with s3.files().open_input_stream(f"bucket/{key}") as stream:
        fields: dict[str, object] = json.loads(stream.read())
        return fields


def test_a_checkpoint_in_a_store_has_its_history_beside_it(s3: S3Server) -> None:
    file = CheckpointFile(s3.address("a/b/shop.json"), history_kept=3)
    assert file.load() is None
    for number in range(1, 6):
        assert file.save(Lsn(number), number * 10)
    assert content(s3, "a/b/shop.json")["lsn"] == "0/5"
    assert [content(s3, f"a/b/shop.history/{name}")["lsn"] for name in names(s3, "a/b/shop.history")] == [
        "0/3",
        "0/4",
        "0/5",
    ]
    assert CheckpointFile(s3.address("a/b/shop.json")).load() == file.last_saved


def test_a_corrupt_checkpoint_in_a_store_gives_way_to_the_newest_good_one(s3: S3Server) -> None:
    file = CheckpointFile(s3.address("shop.json"))
    file.save(Lsn(1), 1)
    file.save(Lsn(2), 2)
    for key in ("shop.json", f"shop.history/{names(s3, 'shop.history')[-1]}"):
        with s3.files().open_output_stream(f"bucket/{key}") as stream:
            stream.write(b'{"lsn": "0/')
    loaded = CheckpointFile(s3.address("shop.json")).load()
    assert loaded is not None
    assert loaded.lsn == 1


def test_what_a_leader_saves_that_was_replaced_counts_for_nothing_in_a_store(s3: S3Server) -> None:
    former, latter = (
        CheckpointFile(s3.address("shop.json"), leader=Leader("7", Lsn(epoch))) for epoch in (1, 2)
    )
    for file, number in ((former, 100), (latter, 200), (former, 110)):
        assert file.save(Lsn(number), number)
    assert content(s3, "shop.json")["epoch"] == "0/1"
    assert CheckpointFile(s3.address("shop.json"), leader=Leader("7", Lsn(3))).load() == latter.last_saved
    latter.keep()
    assert content(s3, "shop.json")["epoch"] == "0/2"


def test_a_checkpoint_at_google_has_its_history_beside_it(gcs: GcsServer) -> None:
    file = CheckpointFile(gcs.address("a/b/shop.json"), history_kept=3)
    assert file.load() is None
    for number in range(1, 6):
        assert file.save(Lsn(number), number * 10)
    saved = {name: json.loads(gcs.objects[name])["lsn"] for name in sorted(gcs.objects)}
    assert saved.pop("a/b/shop.json") == "0/5"
    assert list(saved.values()) == ["0/3", "0/4", "0/5"], "older ones are removed"
    assert all(name.startswith("a/b/shop.history/") for name in saved)
    assert CheckpointFile(gcs.address("a/b/shop.json")).load() == file.last_saved
    another = CheckpointFile(gcs.address("a/b/shop.json"), history_kept=2)
    assert another.save(Lsn(6), 60)
    assert len(gcs.objects) == 1 + 2, "also those of the process before"


def test_a_corrupt_checkpoint_at_google_gives_way_to_the_newest_good_one(gcs: GcsServer) -> None:
    file = CheckpointFile(gcs.address("shop.json"))
    for number in range(1, 5):
        assert file.save(Lsn(number), number)
    for name in ("shop.json", max(name for name in gcs.objects if "history" in name)):
        gcs.objects[name] = b'{"lsn": "0/'
    loaded = CheckpointFile(gcs.address("shop.json")).load()
    assert loaded is not None
    assert loaded.lsn == 3


@pytest.mark.slow
def test_a_checkpoint_that_google_does_not_take_is_counted_and_saved_the_next_time(gcs: GcsServer) -> None:
    file = CheckpointFile(gcs.address("shop.json"))
    assert file.save(Lsn(1), 1)
    gcs.fails = HTTPStatus.SERVICE_UNAVAILABLE
    assert not file.save(Lsn(2), 2)
    assert (file.failed_saves, file.last_saved and file.last_saved.lsn) == (1, 1)
    gcs.fails = None
    wait_until(lambda: file.save(Lsn(3), 3), "the store to take it")
    assert json.loads(gcs.objects["shop.json"])["lsn"] == "0/3"


@pytest.mark.parametrize(
    "address",
    ["s3://bucket/a?region=us-east-1&endpoint_override={url}", f"gs://{BUCKET}/a?endpoint_override={{url}}"],
    ids=["s3", "gs"],
)
def test_a_store_that_says_nothing_holds_nobody_up(
    address: str, gcs: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    silent = socket.create_server(("127.0.0.1", 0))  # takes connections and never answers
    try:
        port = silent.getsockname()[1]
        store = ObjectStore(address.format(url=f"http://127.0.0.1:{port}"), call_timeout_s=0.2)
        for number in range(LEFT_BEHIND_MAX):
            with pytest.raises(TimeoutError, match="within"):
                store.write(f"{number}.json", b"{}")
        with pytest.raises(TimeoutError, match="does not answer"):
            store.read("checkpoint.json")
    finally:
        silent.close()


def test_the_source_keeps_what_no_saved_checkpoint_has(
    s3: S3Server, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    with CaptureProcess(spec(database, tmp_path, checkpoint_path=s3.address("shop.json"))) as capture:
        capture.start()
        database.execute("INSERT INTO orders VALUES (1)")
        first = read_now(capture)
        wait_until(lambda: capture.acknowledge("lake", first) >= first, "the store to take it")
        assert content(s3, "shop.json")["lsn"] == str(first)
        s3.kill()
        database.execute("INSERT INTO orders VALUES (2)")
        second = read_now(capture)
        assert first <= capture.acknowledge("lake", second) < second
        s3.start()
        wait_until(lambda: capture.acknowledge("lake", second) >= second, "the store to take it")
        assert content(s3, "shop.json")["lsn"] == str(second)
