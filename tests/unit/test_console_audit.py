"""The console's audit log: a line is there whole, and one that was cut hides no other."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.console import audit as module
from penstock.console.audit import Audit


def test_a_line_is_whole_when_the_kernel_takes_it_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Audit(tmp_path)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]))
        audit.write("ada", "127.0.0.1", "stream.pause", "asked", stream="public.orders")
    audit.write("ada", "127.0.0.1", "stream.pause", "done", stream="public.orders")
    assert [json.loads(line)["outcome"] for line in audit.path.read_text().splitlines()] == ["asked", "done"]


def test_a_line_that_a_full_disk_has_cut_is_passed_over_and_spoils_no_other(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    audit.write("ada", "127.0.0.1", "stream.pause", "asked")
    with open(audit.path, "ab") as file:
        file.write(b'{"at": "2026-11-16T12:00:00", "who": "bo')
    assert [line["outcome"] for line in audit.newest(10)] == ["asked"]
    audit.write("ada", "127.0.0.1", "stream.pause", "done")
    audit.write("ada", "127.0.0.1", "stream.resume", "asked")
    assert [line["outcome"] for line in audit.newest(10)] == ["asked", "done", "asked"]
    assert [line["what"] for line in audit.newest(1)] == ["stream.resume"]


def test_refusals_never_push_out_what_was_done_and_those_of_one_kind_are_summed_up(tmp_path: Path) -> None:
    now = [0.0]
    audit = Audit(tmp_path, lambda: now[0])
    audit.write("ada", "127.0.0.1", "stream.pause", "done")
    for _ in range(500):
        audit.refuse("", "10.0.0.1", "log in")
    for number in range(500):
        audit.refuse("", f"10.0.1.{number}", "authorization")
    assert len(audit.refused_path.read_bytes().splitlines()) == module.KINDS_MAX + 1
    now[0] = module.SUMMED_S
    audit.refuse("", "10.0.0.1", "log in")
    lines = [line for line in audit.newest(500) if line["from"] in ("10.0.0.1", "many")]
    assert [(line["from"], line["what"], line.get("repeated")) for line in reversed(lines)] == [
        ("10.0.0.1", "log in", None),
        ("many", "authorization", None),
        ("10.0.0.1", "log in", 499),
        ("many", "authorization", 500 - module.KINDS_MAX),
        ("10.0.0.1", "log in", None),
    ]
    assert [json.loads(line)["what"] for line in audit.path.read_text().splitlines()] == ["stream.pause"]
    audit.refuse("", "10.0.0.1", "log in")
    audit.close()
    assert json.loads(audit.refused_path.read_text().splitlines()[-1])["repeated"] == 1


def test_two_consoles_that_turn_the_log_over_at_once_lose_no_more_than_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 4000)
    replace, moved = os.replace, []

    def counted(old: Path, new: Path) -> None:
        moved.append(Path(old).stat().st_size)
        replace(old, new)

    monkeypatch.setattr(os, "replace", counted)
    consoles = [Audit(tmp_path) for _ in range(4)]

    def write(audit: Audit) -> None:
        for number in range(60):
            audit.write("ada", "127.0.0.1", "stream.pause", "done", reason=f"{number}")

    with ThreadPoolExecutor(len(consoles)) as people:
        list(people.map(write, consoles))
    assert moved
    assert min(moved) >= 4000, "a file that was turned over just now is not turned over again"
    kept = [line for path in tmp_path.glob("audit.jsonl*") for line in path.read_bytes().splitlines()]
    assert len(kept) == len(consoles[0].newest(500))
