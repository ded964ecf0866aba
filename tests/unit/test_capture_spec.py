"""What capture is told travels as JSON, and comes out as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import CaptureSpec, ServiceSpec
from penstock.core.position import Lsn
from penstock.core.stream import StreamId

SOURCE = PostgresSpec(
    "postgresql://shop:secret@host/shop",
    "shop",
    "shop_changes",
    "manual",
    failover=True,
    replica_url="postgresql://shop:other-secret@standby/shop",
    replica_wait_s=5.0,
    messages=("shop.*",),
)
SPEC = CaptureSpec(
    SOURCE,
    Path("/state/log"),
    "s3://bucket/checkpoint.json",
    streams=(StreamId("public", "orders"),),
    full_identity=frozenset({StreamId("public", "orders")}),
    lanes={"lake": Lsn(7), "shapes": None},
    renewable=frozenset({"shapes"}),
    service=ServiceSpec("grpc://host:1", "token"),
    lanes_path=Path("/state/lanes.json"),
    epoch_above=Lsn(9),
)


def _arrived(spec: CaptureSpec) -> CaptureSpec:
    return CaptureSpec.from_json(json.loads(json.dumps(spec.to_json())))


def test_a_spec_arrives_as_it_was_sent() -> None:
    assert _arrived(SPEC) == SPEC
    bare = replace(SPEC, service=None, lanes_path=None, source=PostgresSpec("postgresql://", "s", "p"))
    assert _arrived(bare) == bare


def test_a_source_says_what_kind_it_is_of() -> None:
    assert SPEC.to_json()["source"]["type"] == "postgres"


def test_a_spec_that_is_printed_shows_no_secret() -> None:
    assert "secret" not in repr(SPEC)
    assert "token'" not in repr(SPEC)
