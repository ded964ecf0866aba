"""What is kept of a shape beside its rows is read back as it was written."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.shapes.engine.kept_shape import KeptShape
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.storage import ShapeStorage
from tests.logged_changes import definition

pytestmark = pytest.mark.unit


class Storage:
    """Remembers the texts that it is to keep."""

    texts: tuple[str, str]

    def make_ready(self, definition_json: str, facts: str = "") -> None:
        self.texts = definition_json, facts


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("point", [None, SnapshotPoint(5, 9, (6, 8), 1000)])
def test_a_shape_is_kept_with_what_its_snapshot_shows(point: SnapshotPoint | None, hidden: bool) -> None:
    kept = KeptShape(definition("owner = 1"), hidden, point)
    storage = Storage()

    kept.make_ready(cast(ShapeStorage, storage))

    assert KeptShape.parse(*storage.texts) == kept


@pytest.mark.parametrize("texts", [("", ""), ("{}", "null"), ('{"definition": 1, "hidden": false}', "null")])
def test_what_is_no_text_of_ours_is_an_error(texts: tuple[str, str]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        KeptShape.parse(*texts)
