"""Which Java there is."""

from __future__ import annotations

from pathlib import Path

from penstock.lake.java import java_version


def java(path: Path, version: str, asked: Path) -> Path:
    path.write_text(f"#!/bin/sh\necho >> {asked}\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


def test_a_java_is_asked_for_its_version_once_until_it_is_another(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    found = java(tmp_path / "java", "17.0.1", asked)
    assert [java_version(found), java_version(found)] == [17, 17]
    assert len(asked.read_text().splitlines()) == 1
    java(found, "1.8.0_392", asked)
    assert java_version(found) == 8


def test_what_is_not_there_or_does_not_run_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("not a program")
    assert java_version(tmp_path / "java") == 0
    assert java_version(tmp_path / "none") == 0
