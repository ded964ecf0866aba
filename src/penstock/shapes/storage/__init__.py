"""What shapes keep on disk: snapshots, logs, and the commit log that makes them durable together."""

from penstock.shapes.storage.items import LogItems, ShapeItems
from penstock.shapes.storage.recovery import RecoveredShape
from penstock.shapes.storage.shape_storage import ShapeStorage
from penstock.shapes.storage.snapshots import SnapshotChunk, SnapshotState, SnapshotWriter
from penstock.shapes.storage.store import ShapeStore

__all__ = [
    "LogItems",
    "RecoveredShape",
    "ShapeItems",
    "ShapeStorage",
    "ShapeStore",
    "SnapshotChunk",
    "SnapshotState",
    "SnapshotWriter",
]
