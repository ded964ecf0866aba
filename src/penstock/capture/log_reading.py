"""What reads a source's log: three small interfaces between the source and the open step.

    LogStream ──batches──► Decoder ──rows of one table──► ChangeSink (the open step, and the tail)

A `LogStream` brings raw batches, as large as they may be and as they were sent; one thread reads from it, and
never waits for the disk. A `Decoder` turns them into rows of the change log, in another thread; it alone
knows what a message is. Between them and behind them nothing is known of the source: `loop` moves batches,
`steps` decides where a step ends.

Promises of every decoder, on which the log relies (correctness 1, 2, 3, 7):

- Transactions come in the order of their positions, each as a whole, and their `_tx` is below the position
  at which they end. A part may begin and end inside one: `open_tx` says so.
- What begins below the log's end is left out, so that reading may begin anywhere before it.
- `Decoded.position` is the end of the last transaction, or a later position that the source has said to be
  outside of any. Everything below it has been decoded.
- Rows of a table are given in their order, of one schema at a time, and ordinals count every change of a
  transaction before any filter of ours (correctness 35).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from penstock.capture.spec import Started
from penstock.core.alteration import Alteration
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest

Batch = TypeVar("Batch")
Batch_co = TypeVar("Batch_co", covariant=True)


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A table whose rows go to the log; `schema.stream` is its root, `leaf` the table itself."""

    schema: TableSchema
    leaf: StreamId


@dataclass(frozen=True, slots=True)
class Truncation:
    """A table was emptied, as the operation `op_index` of a transaction."""

    tx: int
    op_index: int
    xid: int
    commit_ts_us: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """What was decoded of a part. `rest`: its first message that is left for the next step; None: nothing is.

    `position` is 0 if none was passed. `messages` and `transactions` are those that the log did not have.
    `place` is the position in the source's words, where it has others than the number.
    """

    rest: int | None
    position: Lsn
    messages: int
    transactions: int
    bytes: int
    place: Place | None = None


class ChangeSink(Protocol):
    """Where rows go: the open step."""

    def schema_of(self, table: CapturedTable) -> pa.Schema:
        """The columns that rows of the table have in the log."""

    def write(self, table: CapturedTable, rows: pa.RecordBatch, operations: dict[str, int]) -> None:
        """Rows with that schema; `operations`: how many of each letter."""

    def truncate(self, table: CapturedTable, at: Truncation, *, whole: bool) -> None:
        """`whole`: no leaf of the table's root has rows now."""

    def alter(
        self,
        stream: StreamId,
        tx: int,
        op_index: int,
        *,
        is_untold: bool = False,
        alteration: Alteration | None = None,
    ) -> None:
        """A statement changed the stream's table itself: what its rows are now, the log cannot tell, but for
        `alteration`. `is_untold`: rows of it were changed, and the log has no change of that."""


class LogStream(Protocol[Batch_co]):
    """A connection on which the source sends its log. Used from one thread, but for `close`."""

    @property
    def report_every_s(self) -> float:
        """How often, at least, the source wants to hear from us."""

    @property
    def waiting_bytes(self) -> int:
        """Of what was received and is not taken."""

    @property
    def is_full(self) -> bool:
        """Whether what was received is as much as a batch may be."""

    def receive(self) -> int:
        """Collect what the source has sent, without waiting; how many bytes that were."""

    def take(self) -> Batch_co:
        """All that was received; nothing is waiting then."""

    def wait(self, timeout_s: float, wake: int) -> None:
        """Wait until the source sends anything or the file `wake` is readable."""

    def let_fill(self) -> None:
        """Wait a moment for more of what is already flowing."""

    def report(self, received: Lsn, acknowledged: Lsn, *, ask: bool = False) -> None:
        """Tell the source how far we are, and what it may forget; with `ask`, have it say at once where it
        is. To a source that keeps its log as long as it likes, there is nothing to tell."""

    def close(self) -> None: ...


class Decoder(Protocol[Batch]):
    """Used from one thread, but for `add` and `open_tx`."""

    @property
    def open_tx(self) -> int | None:
        """The transaction in which the last part ended; None if it ended between two."""

    @property
    def spilled_bytes(self) -> int:
        """What waits on disk for the end of its transaction."""

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """What the batch brings to its end, in the order of commits. Read to its end, as it is decoded."""

    def decode(
        self, part: Batch, first: int, log_end: Lsn, must_end: Callable[[Lsn], bool], sink: ChangeSink
    ) -> Decoded:
        """Write changes from message `first` on. A part that ends inside a transaction is decoded only up to
        its last commit, if `must_end` says so of where that ends."""

    def add(self, streams: Sequence[StreamId]) -> None:
        """Keep the changes of these too, from the next batch on. May be called from any thread."""

    def close(self) -> None:
        """Let go of what it has open or has put aside."""


class LogReading(Protocol[Batch]):
    """A source that was set up, and its log from there on."""

    @property
    def started(self) -> Started: ...

    @property
    def newest(self) -> Manifest | None:
        """The change log's last step as it was then."""

    @property
    def read_from(self) -> Lsn:
        """Where reading begins and, in an empty change log, the first step."""

    def decoder(self) -> Decoder[Batch]:
        """Of this log alone, from its beginning on."""

    def stream(self) -> LogStream[Batch]:
        """Have the source send from `read_from` on."""
