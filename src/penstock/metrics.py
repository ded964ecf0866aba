"""The numbers to watch: every metric's name, kind, labels and meaning, in one place.

Processes send samples by these names over their channel; the supervisor serves them to Prometheus. The table
in docs/reference/metrics.md, the dashboard and the alert rules in `deploy/` are checked against this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sample = tuple[str, dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """`kind` as Prometheus has it: a counter never falls, but for a restart of its process."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"penstock_{name}", "gauge", help, labels)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"penstock_{name}_total", "counter", help, labels)


# Said by the supervisor
UP = _gauge("process_up", "1 while the process runs.", "process")
RESTARTS = _counter("process_restarts", "Times the process was started again.", "process")
PARKED = _gauge(
    "process_parked",
    "1 if the process failed too often: it is down, or in the first minute of a try.",
    "process",
)
WAITING = _gauge(
    "process_waiting", "1 while it waits: a lane for a leader, the console for its address.", "process"
)
MEMORY = _gauge("process_memory_bytes", "Resident memory of the process and its children.", "process")
SAMPLES_DROPPED = _counter("samples_dropped", "Samples that processes said and this list does not know.")
LEADING = _gauge("leading", "1 if this instance leads, 0 while it stands by.")

# Said by capture
EPOCH = _gauge("epoch", "The term of this leader: a position of the source's log, rising with every term.")
ROWS_CAPTURED = _counter("captured_rows", "Row changes read from the source.")
BYTES_CAPTURED = _counter("captured_bytes", "Bytes read from the source.")
TRANSACTIONS_CAPTURED = _counter("captured_transactions", "Transactions read from the source.")
CAPTURE_LAG_BYTES = _gauge("capture_lag_bytes", "Log of the source that capture has not received.")
CAPTURE_LAG_SECONDS = _gauge(
    "capture_lag_seconds", "The same in seconds, of a source whose positions are times (MongoDB)."
)
LOG_UNSEALED_BYTES = _gauge("log_unsealed_bytes", "What is received and not yet durable in the change log.")
LOG_BYTES = _gauge("log_bytes", "Size of the change log.")
STEPS_SEALED = _counter("log_steps_sealed", "Steps of the change log.")
SEAL_SECONDS = _counter("log_seal_seconds", "Time spent sealing steps.")
SPILLED_BYTES = _gauge("spilled_bytes", "Transactions in progress that wait on disk.")
TAIL_BYTES = _gauge("tail_bytes", "What waits in memory for lanes that follow the newest changes.")
TAIL_READERS = _gauge("tail_readers", "Readers of the newest changes.")
RETAINED_WAL_BYTES = _gauge("retained_wal_bytes", "Log that the source keeps for the slot.")
SAFE_WAL_BYTES = _gauge("safe_wal_bytes", "Log that may be written before the server gives the slot up.")
SLOT_HEALTHY = _gauge("slot_healthy", "1 while the source has all of its log that is still to be read.")
WAL_PRESSURE = _gauge("wal_pressure", "1 while the source is acknowledged by the change log alone.")
RECONNECTS = _counter("source_reconnects", "Times the connection to the source was lost.")
CHECKPOINT_AGE_SECONDS = _gauge(
    "checkpoint_age_seconds",
    "How long the change log has been ahead of the last saved checkpoint; 0 while it is not.",
)
CHECKPOINTS_SAVED = _counter("checkpoints_saved", "Checkpoints that were saved.")
CHECKPOINT_FAILURES = _counter("checkpoint_failures", "Checkpoints that could not be saved.")
ACKNOWLEDGED = _gauge("acknowledged_position", "What the source may forget, as a number.")
LANE_LAG_BYTES = _gauge("lane_lag_bytes", "Log of the source that the lane does not hold durably.", "lane")
LANE_LAG_SECONDS = _gauge(
    "lane_lag_seconds",
    "How long ago the first changes were sealed in the change log that the lane does not hold durably.",
    "lane",
)
LANE_KNOWN = _gauge("lane_known", "1 once the lane has said how far it is.", "lane")

# Said by the lake lane
FRESHNESS_SECONDS = _gauge(
    "freshness_seconds",
    "From commit at the source to commit in the table, of the oldest change in the newest round.",
    "stream",
)
STREAM_LAG_SECONDS = _gauge(
    "stream_lag_seconds", "Age of the oldest change that the table does not show.", "stream"
)
STREAM_LAG_BYTES = _gauge(
    "stream_lag_bytes", "Size of the change log's files with changes that the table does not show.", "stream"
)
ROWS_APPLIED = _counter("applied_rows", "Row changes committed to the table.", "stream", "operation")
ROWS_LOADED = _counter("loaded_rows", "Rows read by loads.", "stream")
LOAD_ROWS = _gauge("load_rows", "Rows that the load under way has read.", "stream")
LOAD_ROWS_ESTIMATED = _gauge(
    "load_rows_estimated", "Rows that it has to read, as the source guesses.", "stream"
)
TABLE_ROWS = _gauge("table_rows", "Rows that readers of the table see.", "stream")
TABLE_FILES = _gauge("table_files", "Data files of the table.", "stream")
DEAD_LETTERS = _gauge("dead_letters", "Rows that the table could not hold.", "stream")
ROUNDS = _counter("rounds", "Rounds of the two-phase commit.")
ROUND_SECONDS = _counter("round_seconds", "Time spent in rounds.")
ROUND_RETRIES = _counter("round_retries", "Times a lane began anew after an error.", "lane")

VERIFY_DIFFERENCES = _gauge(
    "verify_differences",
    "Rows that are known to differ from the source, by the comparisons that were made.",
    "stream",
)
VERIFY_NOT_COMPARED = _gauge(
    "verify_not_compared", "1 if the newest comparison could not compare the stream.", "stream"
)
VERIFY_TIMESTAMP = _gauge("verify_timestamp_seconds", "When the newest comparison was begun.")
VERIFY_SECONDS = _counter("verify_seconds", "Time spent comparing tables with their source.")
VERIFY_FAILURES = _counter("verify_failures", "Comparisons that ended with an error.")

# Said by the live lane
SHAPES = _gauge("shapes", "Shapes that are kept in sync.")
SHAPES_CREATED = _counter("shapes_created", "Shapes that were made.")
SHAPES_DROPPED = _counter("shapes_dropped", "Shapes that ended: their clients fetch anew.", "reason")
SHAPE_CLIENTS_WAITING = _gauge("shape_clients_waiting", "Clients that wait for changes of a shape.")
SHAPE_CHANGES = _counter("shape_changes", "Row changes that concerned a shape, counted for each shape.")
SHAPE_BYTES = _gauge("shape_bytes", "What shapes take on disk.")
SHAPE_LAG_SECONDS = _gauge(
    "shape_lag_seconds", "From capture having the newest changes to their being in all shapes."
)
SHAPE_SNAPSHOTS = _counter("shape_snapshots", "Snapshots that were taken for new shapes.")
SHAPE_SNAPSHOT_SECONDS = _counter("shape_snapshot_seconds", "From a shape being asked for to its last row.")

# Said by the stream lanes
STREAM_LANE_EVENTS = _counter("stream_lane_events", "Events that were given to the target.", "lane", "stream")
STREAM_LANE_BYTES = _counter("stream_lane_bytes", "Bytes of keys and values that were given to it.", "lane")
STREAM_LANE_FRESHNESS_SECONDS = _gauge(
    "stream_lane_freshness_seconds",
    "From commit at the source to the target having it, of the oldest change in the newest batch.",
    "lane",
)
STREAM_PUBLISHES = _counter("stream_publishes", "Commits to the target, or calls of it.", "lane")
STREAM_PUBLISH_SECONDS = _counter("stream_publish_seconds", "Time that commits or calls took.", "lane")
STREAM_PUBLISHED = _counter("stream_published_events", "Events that the target has confirmed.", "lane")
STREAM_RETRIES = _counter("stream_retries", "Commits, calls or events that were tried again.", "lane")
STREAM_IN_FLIGHT = _gauge("stream_in_flight_events", "Events on their way to the target.", "lane")
STREAM_IN_FLIGHT_BYTES = _gauge("stream_in_flight_bytes", "Bytes of them, keys and values.", "lane")
STREAM_DEAD_LETTERS = _gauge(
    "stream_dead_letters", "Events that the target refused, and those behind them.", "lane", "stream", "code"
)
STREAM_BLOCKED_KEYS = _gauge("stream_blocked_keys", "Keys whose events join their dead letters.", "lane")
STREAM_UNPROVEN = _counter(
    "stream_unproven_events", "Events of which nobody can tell whether the target has them.", "lane", "reason"
)
STREAM_LANE_PAUSED = _gauge("stream_lane_paused", "1 while somebody has paused the lane.", "lane")
STREAM_LANE_LOADING = _gauge("stream_lane_loading", "Streams whose rows are being loaded.", "lane")
STREAM_LANE_READ_ANEW = _counter(
    "stream_lane_read_anew",
    "Loads that were cut and read their table anew. Rows of a table without a key may be told twice by each.",
    "lane",
    "stream",
)
STREAM_LANE_GAPS = _gauge(
    "stream_lane_gaps", "Streams that stand still, because changes of theirs are missing.", "lane"
)

METRICS: tuple[Metric, ...] = tuple(value for value in globals().values() if isinstance(value, Metric))
BY_NAME = {metric.name: metric for metric in METRICS}
