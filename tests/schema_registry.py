"""A schema registry that answers as the documented HTTP interface of Confluent's does, for what lanes ask.

It is no registry of anybody's: what it holds is in memory, and whether a version may follow the last one is
decided by the test (`refuse`). Ids are given once per schema text, whatever its subject, as registries do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlparse


@dataclass
class SchemaRegistry:
    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)  # the one with id n is at n - 1
    subjects: dict[str, list[int]] = field(default_factory=dict)
    refuse: set[str] = field(default_factory=set)
    status: int = 200  # of every answer, if another
    requests: list[tuple[str, str]] = field(default_factory=list)

    def schema(self, number: int) -> str:
        return str(self.schemas[number - 1]["schema"])

    def versions(self, subject: str) -> list[str]:
        return [self.schema(number) for number in self.subjects.get(subject, [])]

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.requests.append((method, path))
        if self.status != 200:
            return self.status, {"error_code": self.status * 100, "message": "as the test has it"}
        match [unquote(part) for part in path.strip("/").split("/")], method:
            case ["subjects", subject, "versions"], "POST":
                return self._register(
                    subject, {key: body[key] for key in ("schema", "schemaType") if key in body}
                )
            case ["subjects", subject, "versions", "latest"], "GET":
                numbers = self.subjects.get(subject)
                if not numbers:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                found = self.schemas[numbers[-1] - 1]
                return 200, {"subject": subject, "version": len(numbers), "id": numbers[-1], **found}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, schema: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        numbers = self.subjects.setdefault(subject, [])
        number = self.schemas.index(schema) + 1 if schema in self.schemas else 0
        if number not in numbers:
            if subject in self.refuse:
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
            if not number:
                self.schemas.append(schema)
                number = len(self.schemas)
            numbers.append(number)
        return 200, {"id": number}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else {}
            status, answer = registry.answer(self.command, urlparse(self.path).path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
