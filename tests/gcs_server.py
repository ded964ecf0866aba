"""A server that answers as Google Cloud Storage does: as much of its JSON API as Arrow's client asks for.

An object is there when its upload is complete, and never before; lists come in pages. Who has no token is
refused: one is given for the credentials of `credentials`, where Google's own tools look for them.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
from contextlib import AbstractContextManager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

BUCKET = "bucket"
_TOKEN = "token-of-a-test"
_PAGE = 2
_OBJECTS = f"/storage/v1/b/{BUCKET}/o"
_UPLOADS = f"/upload{_OBJECTS}"
_TIME = "2026-01-01T00:00:00.000Z"
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class GcsServer(AbstractContextManager["GcsServer"]):
    """`objects`: what the bucket holds. `fails`: every request is answered with that status."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails: HTTPStatus | None = None
        self.uploads: dict[str, tuple[str, bytes]] = {}  # under way, by their number: name, and what has come
        self.numbers = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Bound", (_Handler,), {"gcs": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def address(self, key: str) -> str:
        """Of an object, as the pipeline file has it; credentials are in the environment."""
        return f"gs://{BUCKET}/{key}?endpoint_override={self.url}"

    def credentials(self, path: Path) -> Path:
        """The file that GOOGLE_APPLICATION_CREDENTIALS should name."""
        names = ("client_id", "client_secret", "refresh_token")
        fields = {"type": "authorized_user", "token_uri": f"{self.url}/token", **dict.fromkeys(names, "test")}
        path.write_text(json.dumps(fields))
        return path

    def __enter__(self) -> GcsServer:
        threading.Thread(target=self._server.serve_forever, name="gcs", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gcs: GcsServer

    def do_GET(self) -> None:
        if (name := self._admitted_name()) is None:
            return
        asked = parse_qs(urlsplit(self.path).query)
        if not name:
            self._answer(self._page(asked))
        elif name not in self.gcs.objects:
            self._refuse(HTTPStatus.NOT_FOUND)
        elif asked.get("alt") == ["media"]:
            self._answer(self.gcs.objects[name])
        else:
            self._answer(self._described(name))

    def do_DELETE(self) -> None:
        if (name := self._admitted_name()) is None:
            return
        if self.gcs.objects.pop(name, None) is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        else:
            self._answer(b"", HTTPStatus.NO_CONTENT)

    def do_POST(self) -> None:
        body, address = self._body(), urlsplit(self.path)
        if address.path == "/token":
            self._answer({"access_token": _TOKEN, "expires_in": 3600, "token_type": "Bearer", "id_token": ""})
        elif self._is_admitted():
            asked = parse_qs(address.query)
            assert (address.path, asked["uploadType"]) == (_UPLOADS, ["resumable"])
            (name,) = asked.get("name") or [json.loads(body)["name"]]
            number = str(next(self.gcs.numbers))
            self.gcs.uploads[number] = (name, b"")
            place = f"{self.gcs.url}{_UPLOADS}?uploadType=resumable&upload_id={number}"
            self._answer({}, headers={"Location": place})

    def do_PUT(self) -> None:
        body = self._body()
        if not self._is_admitted():
            return
        (number,) = parse_qs(urlsplit(self.path).query)["upload_id"]
        name, received = self.gcs.uploads[number]
        given = _RANGE.fullmatch(self.headers["Content-Range"])
        assert given is not None, self.headers["Content-Range"]
        first, size = given.groups()
        assert first is None or int(first) == len(received), "pieces follow one another"
        received += body
        self.gcs.uploads[number] = (name, received)
        if size == str(len(received)):
            self.gcs.objects[name] = received
            self._answer(self._described(name))
        else:
            headers = {"Range": f"bytes=0-{len(received) - 1}"} if received else {}
            self._answer(b"", HTTPStatus.PERMANENT_REDIRECT, headers)

    def log_message(self, *_: Any) -> None:
        """Nothing: a test says what it found."""

    def _admitted_name(self) -> str | None:
        """Of the object that is asked for, "" for the bucket's list; None if that was answered already."""
        if not self._is_admitted():
            return None
        path = urlsplit(self.path).path
        if path == _OBJECTS:
            return ""
        if not path.startswith(f"{_OBJECTS}/"):
            self._refuse(HTTPStatus.NOT_FOUND)
            return None
        return unquote(path.removeprefix(f"{_OBJECTS}/"))

    def _is_admitted(self) -> bool:
        status = self.gcs.fails
        if status is None and self.headers["Authorization"] != f"Bearer {_TOKEN}":
            status = HTTPStatus.UNAUTHORIZED
        if status is not None:
            self._refuse(status)
        return status is None

    def _page(self, asked: dict[str, list[str]]) -> dict[str, Any]:
        (prefix,), (delimiter,) = asked.get("prefix", [""]), asked.get("delimiter", [""])
        (after,) = asked.get("pageToken", [""])
        names = sorted(name for name in self.gcs.objects if name.startswith(prefix) and name > after)
        page = names[:_PAGE]
        directories = {
            prefix + rest.partition(delimiter)[0] + delimiter
            for name in page
            if delimiter and delimiter in (rest := name[len(prefix) :])
        }
        items = [
            self._described(name) for name in page if not any(name.startswith(each) for each in directories)
        ]
        found: dict[str, Any] = {"kind": "storage#objects", "items": items, "prefixes": sorted(directories)}
        return found | ({"nextPageToken": page[-1]} if names[_PAGE:] else {})

    def _described(self, name: str) -> dict[str, Any]:
        content = self.gcs.objects[name]
        return {
            "kind": "storage#object",
            "id": f"{BUCKET}/{quote(name, safe='')}/1",
            "bucket": BUCKET,
            "name": name,
            "size": str(len(content)),
            "md5Hash": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode(),
            "generation": "1",
            "metageneration": "1",
            "timeCreated": _TIME,
            "updated": _TIME,
        }

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _refuse(self, status: HTTPStatus) -> None:
        self._answer({"error": {"code": status.value, "message": status.phrase}}, status)

    def _answer(
        self, content: Any, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None
    ) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
