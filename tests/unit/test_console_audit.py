"""The console's audit log: a line is there whole, and one that was cut hides no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

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
