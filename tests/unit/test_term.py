"""A term in which no lane is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.capture import term as term_module
from penstock.capture.spec import ServiceSpec
from penstock.capture.term import Term
from penstock.core.errors import PenstockError, PositionGoneError, SourceBusyError, SourceError, StateError
from tests.capture_specs import capture_spec

pytestmark = pytest.mark.unit

HEARTBEATS = term_module._READ_ALONE_AFTER_HEARTBEATS


class Alone:
    """A term that nobody joins. `tries`: the heartbeats after which it wanted to read on alone."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *errors: PenstockError) -> None:
        self.now = 0.0
        self.tries: list[float] = []
        self.notes: list[str] = []
        self._errors = list(errors)
        monkeypatch.setattr(term_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        spec = capture_spec(
            url="postgresql://",
            slot="s",
            publication="p",
            log_directory=directory / "log",
            checkpoint_path=directory / "checkpoint",
            lanes_path=directory / "lanes.json",
            service=ServiceSpec("grpc://127.0.0.1:0", None),
            heartbeat_s=1.0,
        )
        self._term = Term(spec, self.notes.append)
        server: Any = SimpleNamespace(
            over=SimpleNamespace(wait=lambda _: False),
            leadership=SimpleNamespace(require=lambda: None),
            reading=None,
            read_alone=self._read_alone,
        )
        self._term.server = server

    def attend(self, heartbeats: int) -> None:
        for _ in range(heartbeats):
            self.now += 1.0
            self._term.attend()

    def _read_alone(self) -> None:
        self.tries.append(self.now)
        if self._errors:
            raise self._errors.pop(0)


def test_reading_alone_is_tried_again_when_the_source_could_not_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source may be told to forget nothing before, whatever `on_wal_pressure` says."""
    alone = Alone(
        tmp_path, monkeypatch, SourceBusyError("held"), SourceBusyError("held"), SourceError("away")
    )
    alone.attend(4 * HEARTBEATS)
    assert alone.tries == [HEARTBEATS, 2 * HEARTBEATS, 3 * HEARTBEATS, 4 * HEARTBEATS]
    assert [note.rpartition(". ")[2] for note in alone.notes] == ["held", "away"], "each reason once"


@pytest.mark.parametrize("error", [PositionGoneError("a gap"), StateError("a log of another server")])
def test_reading_alone_is_not_tried_again_when_somebody_must_look(
    error: PenstockError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Alone(tmp_path, monkeypatch, error)
    alone.attend(3 * HEARTBEATS)
    assert alone.tries == [HEARTBEATS]
    assert len(alone.notes) == 1
