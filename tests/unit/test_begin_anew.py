"""When a change log is begun anew by itself, and when somebody must look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.capture import server
from penstock.capture.server import CaptureServer
from penstock.capture.spec import CaptureSpec, ServiceSpec
from penstock.core.errors import AnotherSourceError, PenstockError, PositionGoneError, StateError
from penstock.core.position import Lsn
from tests.capture_specs import capture_spec


class _FailingServer(CaptureServer):
    """Whose set-up fails the first time."""

    def __init__(self, spec: CaptureSpec, error: PenstockError) -> None:
        super().__init__(spec, lambda _: None)
        self._errors = [error]

    def _set_up(self, *_: Any) -> Any:
        if self._errors:
            raise self._errors.pop()


def _spec(directory: Path, **changed: Any) -> CaptureSpec:
    values: dict[str, Any] = {
        "url": "postgresql://",
        "slot": "s",
        "publication": "p",
        "log_directory": directory / "log",
        "checkpoint_path": directory / "checkpoint",
        "lanes": {"shapes": None},
        "renewable": frozenset({"shapes"}),
        "service": ServiceSpec("grpc://127.0.0.1:0", None),
    }
    return capture_spec(**values | changed)


@pytest.mark.parametrize("error", [PositionGoneError("a gap"), AnotherSourceError("another server")])
def test_a_log_that_cannot_go_on_is_begun_anew_where_all_lanes_can_be(
    error: PenstockError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[CaptureSpec] = []
    monkeypatch.setattr(server, "begin_anew", lambda spec, _: begun.append(spec))
    spec = _spec(tmp_path)
    _FailingServer(spec, error)._set_up_term(Lsn(1), (), ())
    assert begun == [spec]

    lake = _spec(tmp_path, lanes={"shapes": None, "lake": None})
    with pytest.raises(type(error)):
        _FailingServer(lake, error)._set_up_term(Lsn(1), (), ())
    assert begun == [spec]


def test_a_log_that_cannot_be_read_is_left_for_somebody_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "begin_anew", lambda *_: pytest.fail("the log was removed"))
    error = StateError("0001.json of the change log was written by a newer Penstock.")
    with pytest.raises(StateError):
        _FailingServer(_spec(tmp_path), error)._set_up_term(Lsn(1), (), ())
