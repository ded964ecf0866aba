"""The Iceberg library inside Spark's JVM: the handful of calls that a commit is made of.

A commit here is a compare-and-set against the exact metadata that was looked at: `Attempt.base` is read
once, checked by the caller, and `Attempt.commit` succeeds only if the table's metadata is still that very
version (correctness 16). Iceberg's own `commit()` refreshes and tries again on top of whatever came in
between, so that a leader that slept would land on its successor's table; it is never used.

How: Iceberg's transaction object gathers the updates in memory. Instead of being committed it is asked for
the metadata it came to, which goes to the catalog with the base it must replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from penstock.core.errors import DestinationAwayError, DestinationError
from penstock.core.stream import StreamId
from penstock.destinations.iceberg_history import Ancestor
from penstock.destinations.iceberg_outages import is_outage

_EXCEPTIONS = "org.apache.iceberg.exceptions."


@dataclass(frozen=True, slots=True)
class Java:
    """Spark's JVM, handed in by whoever started it."""

    jvm: Any
    gateway: Any
    hadoop_configuration: Any

    # Finding a class by its name takes a call for every part of it.
    _classes: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def iceberg(self, name: str) -> Any:
        """A class of Iceberg, named from `org.apache.iceberg` on."""
        return self.named(f"org.apache.iceberg.{name}")

    def named(self, name: str) -> Any:
        if name not in self._classes:
            found = self.jvm
            for part in name.split("."):
                found = getattr(found, part)
            self._classes[name] = found
        return self._classes[name]

    def map_of(self, entries: Mapping[str, str]) -> Any:
        made = self.jvm.java.util.HashMap()
        for key, value in entries.items():
            made.put(key, value)
        return made

    def strings(self, *texts: str) -> Any:
        array = self.gateway.new_array(self.jvm.java.lang.String, len(texts))
        for index, text in enumerate(texts):
            array[index] = text
        return array


def items(java_list: Any) -> Iterator[Any]:
    """What a list of Java's holds. Python's own loop over one ends by a Java exception, which takes 10 ms."""
    for index in range(java_list.size()):
        yield java_list.get(index)


@contextmanager
def each_of(closeable: Any) -> Iterator[Iterator[Any]]:
    """What an iterable of Java's holds that wants to be closed.

    At the end of the block, also by an error: left to the collection of garbage, it would be closed in the
    middle of another call, on the same connection.
    """
    try:
        yield _held(closeable.iterator())
    finally:
        closeable.close()


def _held(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


class StaleMetadataError(Exception):
    """Somebody committed since we looked; nothing of ours was written."""


class ConflictingFilesError(Exception):
    """What is staged does not fit to what the table holds; nothing of ours was written."""


class UnknownOutcomeError(Exception):
    """The catalog did not answer: the commit may or may not have been made."""


Outcomes = Mapping[str, type[Exception]]
STAGING: Outcomes = {"ValidationException": ConflictingFilesError}
COMMITTING: Outcomes = {
    "CommitFailedException": StaleMetadataError,
    "ValidationException": ConflictingFilesError,
    "BadRequestException": ConflictingFilesError,  # a REST catalog's word for the same
    "CommitStateUnknownException": UnknownOutcomeError,
    "RESTException": UnknownOutcomeError,  # no answer came, or none that could be read
}


@contextmanager
def iceberg_errors(doing: str, stream: StreamId | None = None) -> Iterator[None]:
    """Java's exceptions as ours. Their messages stay in the chain: they may quote values."""
    try:
        yield
    except Py4JJavaError as error:
        raise _failed(doing, stream, _name(error), is_away=is_outage(error.java_exception)) from error
    except Py4JError as error:
        raise _failed(doing, stream, type(error).__name__, is_away=True) from error  # no answer of Java's
    except Exception as error:
        if not _is_of_pyspark(error):
            raise
        raise _failed(doing, stream, type(error).__name__, is_away=False) from error


@contextmanager
def commit_outcomes(stream: StreamId, acted_upon: Outcomes = COMMITTING) -> Iterator[None]:
    """The same around a step of a commit; those that the caller acts upon are the exceptions above."""
    with iceberg_errors("committing", stream):
        try:
            yield
        except Py4JJavaError as error:
            if _name(error) in acted_upon:
                raise acted_upon[_name(error)] from error
            raise


def _name(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName()).removeprefix(_EXCEPTIONS)


def _is_of_pyspark(error: Exception) -> bool:
    """Some of Java's exceptions (IllegalArgumentException among them) PySpark replaces by its own."""
    return any(kind.__module__.startswith("pyspark.") for kind in type(error).__mro__)


def _failed(doing: str, stream: StreamId | None, name: str, *, is_away: bool) -> DestinationError:
    kind = DestinationAwayError if is_away else DestinationError
    return kind(
        f"Iceberg failed while {doing}.",
        stream=None if stream is None else str(stream),
        detail=f"{name}; the Spark log in the state directory may say more.",
        remedy="See that the catalog and the warehouse can be reached, then run the same command again.",
    )


class Attempt:
    """Updates on top of one version of a table's metadata, committed against that version or not at all."""

    def __init__(self, java: Java, name: str, operations: Any) -> None:
        self._java = java
        self._operations = operations
        self.transaction = java.iceberg("Transactions").newTransaction(name, operations)
        self._staged = self.transaction.table().operations()
        self.base = Metadata(java, self._staged.current(), operations.io())

    @property
    def staged(self) -> Metadata:
        """The table as this attempt would leave it."""
        return Metadata(self._java, self._staged.current(), self._operations.io())

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set these; those given as None are removed."""
        update = self.transaction.updateProperties()
        for key, value in properties.items():
            if value is not None:
                update.set(key, value)
            elif self.base.property(key) is not None:
                update.remove(key)
        update.commit()

    def set_schema(self, schema_json: str) -> None:
        """Let the table have these columns, under the ids that they carry."""
        schema = self._java.iceberg("SchemaParser").fromJson(schema_json)
        before = self._staged.current()
        if before.schema().sameSchema(schema):
            return
        last = max(before.lastColumnId(), schema.highestFieldId())
        after = self._java.iceberg("TableMetadata").buildFrom(before).setCurrentSchema(schema, last).build()
        self._staged.commit(before, after)

    def is_outdated(self) -> bool:
        """Whether the table has other metadata now than the attempt was made on top of."""
        now = self._operations.refresh().metadataFileLocation()
        return str(now) != str(self.base.java.metadataFileLocation())

    def commit(self) -> None:
        self._operations.commit(self.base.java, self._staged.current())


class Metadata:
    """One version of a table's metadata."""

    def __init__(self, java: Java, metadata: Any, io: Any) -> None:
        self._java = java
        self.java = metadata
        self._io = io
        self._older: dict[int, Ancestor] | None = None

    @property
    def location(self) -> str:
        return str(self.java.location())

    @property
    def schema_json(self) -> str:
        return str(self._java.iceberg("SchemaParser").toJson(self.java.schema()))

    @property
    def last_column_id(self) -> int:
        return int(self.java.lastColumnId())

    @property
    def format_version(self) -> int:
        return int(self.java.formatVersion())

    @property
    def deletes_by_vector(self) -> bool:
        """Whether the format wants vectors for new deletes of positions, or cannot have them."""
        return self.format_version >= 3

    def property(self, key: str) -> str | None:
        value = self.java.properties().get(key)
        return None if value is None else str(value)

    def head(self, branch: str) -> int | None:
        reference = self.java.ref(branch)
        return None if reference is None else int(reference.snapshotId())

    def descends(self, snapshot_id: int | None, ancestor: int) -> bool:
        """Whether a snapshot is another one or was made on top of it."""
        while snapshot_id is not None and snapshot_id != ancestor:
            snapshot = self.java.snapshot(snapshot_id)
            parent = None if snapshot is None else snapshot.parentId()
            snapshot_id = None if parent is None else int(parent)
        return snapshot_id is not None

    def written_for(self, snapshot_id: int) -> Iterator[str]:
        """The files of metadata that came with a snapshot: its list of manifests, and new ones in it."""
        snapshot = self.java.snapshot(snapshot_id)
        yield str(snapshot.manifestListLocation())
        for manifest in items(snapshot.allManifests(self._io)):
            if manifest.snapshotId() == snapshot_id:
                yield str(manifest.path())

    def find(self, summary_key: str) -> Callable[[int], Ancestor | None]:
        """Looks up a snapshot here, then in the older metadata files that are still listed."""

        def find_snapshot(snapshot_id: int) -> Ancestor | None:
            snapshot = self.java.snapshot(snapshot_id)
            if snapshot is not None:
                return _ancestor(snapshot, summary_key)
            if self._older is None:
                self._older = self._read_older(summary_key)
            return self._older.get(snapshot_id)

        return find_snapshot

    def _read_older(self, summary_key: str) -> dict[int, Ancestor]:
        found: dict[int, Ancestor] = {}
        parser = self._java.iceberg("TableMetadataParser")
        for entry in items(self.java.previousFiles()):
            try:
                older = parser.read(self._io, entry.file())
            except Py4JJavaError:
                continue  # removed since; what is left may be enough
            for snapshot in items(older.snapshots()):
                found[int(snapshot.snapshotId())] = _ancestor(snapshot, summary_key)
        return found


def _ancestor(snapshot: Any, summary_key: str) -> Ancestor:
    parent = snapshot.parentId()
    commit = snapshot.summary().get(summary_key)
    return Ancestor(
        int(snapshot.snapshotId()),
        None if parent is None else int(parent),
        None if commit is None else str(commit),
    )
