"""`python -m bench.bare_flight ADDRESS COUNT`: a Flight server that does nothing but send the time.

Every few milliseconds one small batch, as the measure for what a hop through capture's tail takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

EVERY_S = 0.003
SCHEMA = pa.schema([("at", pa.float64()), ("value", pa.string())])


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        return flight.GeneratorStream(SCHEMA, self._batches(int(sys.argv[2])))

    def _batches(self, count: int) -> Iterator[pa.RecordBatch]:
        for _ in range(count):
            time.sleep(EVERY_S)
            yield pa.RecordBatch.from_pydict({"at": [time.time()], "value": ["x" * 100]}, schema=SCHEMA)


if __name__ == "__main__":
    server = _Server(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.read()
