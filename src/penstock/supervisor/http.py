"""What an instance tells whoever watches it, over HTTP: `/metrics`, `/health`, `/status`. It takes no orders.

    /metrics                          every sample of every process, as Prometheus reads them
    /health, /health/live, /…/ready   JSON; 200 if it is so, 503 if not (`/health`: live and ready)
    /status                           JSON: role, processes, lanes, streams, slot, health

Clients cost little and cannot hold anything up: so many connections at a time and no more, one request on
each, and a connection ends after a few seconds whatever it does. Answers hold names, states, positions and
counts; no value of a row, no URL of a source.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from penstock.core.errors import ConfigError
from penstock.metrics import BY_NAME, SAMPLES_DROPPED, Metric, Sample
from penstock.supervisor.health import Health, health
from penstock.supervisor.status import RunStatus

CONNECTIONS_MAX = 16
CONNECTION_S_MAX = 5.0
_POLL_S = 0.5
_logger = structlog.get_logger("penstock.http")
_JSON = "application/json"


class Watched(Protocol):
    """The supervisor, as it is seen from here. Asked by several threads; answers at once."""

    def snapshot(self) -> RunStatus: ...

    def samples(self) -> Iterable[Sample]:
        """The supervisor's own, and the last ones of each process."""

    @property
    def dropped_samples(self) -> int: ...


class StatusServer:
    """Serves from when it is made until `stop`. `port` is the one it got, if any was asked for."""

    def __init__(self, listen: str, watched: Watched) -> None:
        host, _, port = listen.rpartition(":")
        answers = Answers(watched)

        class Handler(_Handler):
            answer = staticmethod(answers.answer)

        try:
            self._server = _Server((host, int(port)), Handler)
        except OSError as error:
            raise ConfigError(
                f"Nothing can listen on {listen} (`run.listen`): {error.strerror}.",
                remedy="Name another address in the pipeline file; port 0 takes a free one.",
            ) from error
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="http", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Answers:
    """What is answered to a path: code, kind of content, content."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._registry = CollectorRegistry()
        self._registry.register(_Samples(watched))

    def answer(self, path: str) -> tuple[int, str, bytes]:
        match path.partition("?")[0].rstrip("/"):
            case "/metrics":
                return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)
            case "/status":
                return 200, _JSON, _json(status_document(self._watched))
            case "/health":
                return self._health(lambda found: found.live and found.ready)
            case "/health/live":
                return self._health(lambda found: found.live)
            case "/health/ready":
                return self._health(lambda found: found.ready)
            case _:
                return 404, _JSON, _json({"error": "There are /metrics, /health and /status."})

    def _health(self, good: Callable[[Health], bool]) -> tuple[int, str, bytes]:
        found = health(self._watched.snapshot())
        return 200 if good(found) else 503, _JSON, _json(found.to_json())


def status_document(watched: Watched) -> dict[str, Any]:
    """What `/status` answers."""
    status = watched.snapshot()
    return {**status.to_json(), "health": health(status).to_json()}


class _Samples(Collector):
    """All samples at the moment of asking, as the families of Prometheus' client."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        # By place, since Prometheus throws all away if one is there twice.
        values: dict[Metric, dict[tuple[str, ...], float]] = {
            SAMPLES_DROPPED: {(): self._watched.dropped_samples}
        }
        for name, labels, value in self._watched.samples():
            metric = BY_NAME[name]
            values.setdefault(metric, {})[tuple(labels[label] for label in metric.labels)] = value
        for metric, places in values.items():
            yield _family(metric, places)

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        return iter(())  # or the registry would collect when we register


def _family(metric: Metric, places: dict[tuple[str, ...], float]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for place, value in places.items():
        family.add_metric(place, value)
    return family


class _Handler(BaseHTTPRequestHandler):
    """One request, one answer, and the connection is closed: HTTP/1.0, the default here."""

    answer: Callable[[str], tuple[int, str, bytes]]
    timeout = CONNECTION_S_MAX
    server_version = "penstock"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            code, kind, content = self.answer(self.path)
        except Exception as error:
            _logger.error("request not answered", path=self.path[:100], reason=type(error).__name__)
            code, kind, content = 500, _JSON, _json({"error": "See the log."})
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Somebody asks every few seconds: no news."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._ends: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_full = len(self._ends) >= CONNECTIONS_MAX
            if not is_full:
                self._ends[request] = time.monotonic() + CONNECTION_S_MAX
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End what lasts too long: a client that sends a byte now and then would stay for ever."""
        now = time.monotonic()
        with self._lock:
            for request in [each for each, end in self._ends.items() if end < now]:
                try:
                    request.shutdown(socket.SHUT_RDWR)
                except OSError:  # it has gone by itself; its thread takes it off the list
                    continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle, or was sent away: its own business."""


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=str).encode()
