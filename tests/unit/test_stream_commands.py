"""`penstock lane pause | resume | rewind` and `resync --lane`: what they leave for the lane to do."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.ledger.run_file import RunFile, Running
from penstock.streams.orders import OrderBook, lane_directory

PIPELINE = """\
source: {type: postgres, url: "postgresql://app@db/shop"}
destination: {type: parquet, path: ./lake}
state: ./state
streams: ["public.*"]
lanes: {file: {path: ./changes.ndjson}}
"""


class Command:
    def __init__(self, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.orders = OrderBook(lane_directory(state, "file"))
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "--json"])
        return int(caught.value.code or 0), json.loads(self._capsys.readouterr().out)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    (tmp_path / "penstock.yaml").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield Command(tmp_path / "state", capsys)
    signal.signal(signal.SIGTERM, before)


def test_a_lane_is_paused_and_resumed(command: Command) -> None:
    assert command("lane", "pause", "file", "--reason", "moving")[0] == 0
    assert (command.orders.read().is_paused, command.orders.read().reason) == (True, "moving")
    assert command("lane", "resume", "file")[0] == 0
    assert not command.orders.read().is_paused


def test_only_lanes_of_the_pipeline_file_take_orders(command: Command) -> None:
    for arguments in (("lane", "pause", "kafka"), ("resync", "--lane", "lake", "--yes")):
        code, answer = command(*arguments)
        assert (code, answer["error"]["code"]) == (2, "config")
        assert "file" in answer["error"]["remedy"]


def test_a_lane_is_not_rewound_to_where_the_log_does_not_reach(command: Command) -> None:
    code, answer = command("lane", "rewind", "file", "--to", "0/1")
    assert code == 2
    assert "does not reach back" in answer["error"]["message"]
    assert command("lane", "rewind", "file", "--to", "yesterday")[0] == 2
    assert not command.orders.read().is_open


def test_a_lane_is_loaded_anew_on_purpose_only(command: Command) -> None:
    assert command("resync", "--lane", "file")[0] == 2
    assert not command.orders.read().is_open
    code, answer = command("resync", "public.orders", "--lane", "file", "--yes")
    assert (code, answer) == (0, {"lane": "file", "resync": ["public.orders"]})
    assert command.orders.read().resync == ("public.orders",)
    assert command("resync", "--lane", "file", "--yes")[0] == 0
    assert command.orders.read().resync == ()


@pytest.mark.parametrize("stream", ["other.orders", "orders"])
def test_what_is_no_stream_of_the_pipeline_is_not_loaded(command: Command, stream: str) -> None:
    assert command("resync", stream, "--lane", "file", "--yes")[0] == 2


def test_an_order_starts_a_parked_lane_of_an_instance_on_this_host(command: Command, tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _frame: heard.append(number))
    try:
        leader = Running(
            os.getpid(), socket.gethostname(), "127.0.0.1:1", {"address": "grpc+unix:///x"}, "now"
        )
        RunFile(tmp_path / "state", leader).keep(leading=True)
        assert command("lane", "resume", "file")[0] == 0
        assert heard == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)
