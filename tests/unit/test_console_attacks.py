"""The console against a list of attacks, over real sockets: what must not get through does not."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock.config import Config
from penstock.console import access
from penstock.console.http import BODY_BYTES_MAX, CONNECTIONS_MAX
from penstock.console.serving import Console, said_in
from penstock.core.errors import AddressError, ConfigError
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
from tests.certificates import write_certificates
from tests.conftest import wait_until

ACT, LOOK, PASSWORD = "token-that-may-act", "token-that-may-look", "correct horse"
_PIPELINE = {
    "source": {"type": "postgres", "url": "postgresql://u:very-secret@nowhere/db"},
    "destination": {"type": "parquet", "path": "./lake"},
    "state": "./state",
    "streams": ["public.orders"],
    "lanes": {"file": {"path": "./events"}},
    "console": {
        "listen": "127.0.0.1:0",
        "access": [
            {"name": "ada", "role": "act", "token": ACT},
            {"name": "board", "role": "look", "token": LOOK},
            {"name": "bob", "role": "act", "password": PASSWORD},
        ],
    },
}


@dataclass
class Got:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    port: int
    state: Path

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **more: str
    ) -> Got:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        sent = {name.replace("_", "-"): value for name, value in more.items()} | (headers or {})
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if isinstance(body, dict) and "content-type" not in sent:
            sent["content-type"] = "application/json"
        try:
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Got(answer.status, found, answer.read())
        finally:
            connection.close()

    def raw(self, content: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            pieces = []
            while piece := connection.recv(65536):
                pieces.append(piece)
            return b"".join(pieces)

    def login(self, token: str = ACT) -> dict[str, str]:
        """The headers of somebody who is logged in."""
        got = self.ask("POST", "/api/login", {"token": token})
        assert got.status == 200, got.body
        return {"cookie": got.headers["set-cookie"].partition(";")[0], "x-penstock-proof": got.json["proof"]}

    def audit(self) -> list[dict[str, Any]]:
        paths = [self.state / "console" / name for name in ("audit.jsonl", "refused.jsonl")]
        lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
        return list(map(json.loads, lines))


def pipeline_file(directory: Path, settings: dict[str, Any] | None = None, /, **console: Any) -> Path:
    content = {**_PIPELINE, **(settings or {}), "console": {**_PIPELINE["console"], **console}}  # type: ignore[dict-item]
    file = directory / "penstock.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def served(
    directory: Path, settings: dict[str, Any] | None = None, /, **console: Any
) -> tuple[Console, Client]:
    file = pipeline_file(directory, settings, **console)
    config = Config.load(file)
    console_ = Console(config, file, lambda: None)
    return console_, Client(int(console_.url.rpartition(":")[2]), config.state)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    console, client = served(tmp_path_factory.mktemp("console"))
    yield client
    console.stop()


PAUSE = {"action": "stream.pause", "fields": {"stream": "public.orders"}}


class TestWhoMay:
    @pytest.mark.parametrize(
        "path",
        [
            "/api/view", "/api/events", "/api/session", "/api/history?series=a&from=0&to=1", "/api/series",
            "/api/audit", "/api/lanes", "/api/letters", "/api/letters/lake?stream=a.b", "/api/shapes",
            "/api/state", "/api/state/diff?from=1&to=2", "/api/log/steps", "/api/log/step?step=1",
        ],
    )  # fmt: skip
    def test_nothing_is_told_to_who_is_not_known(self, client: Client, path: str) -> None:
        assert client.ask("GET", path).status == 401

    @pytest.mark.parametrize(
        "path",
        [
            "//api/view", "/api//view", "/./api/view", "/api/../api/view", "/%61pi/view", "/api/%76iew",
            "/api/view/", "/api/view/.", "/assets/../api/view", "/assets/%2e%2e/api/view", "/assets/..%2fapi",
            "/api/view;x=1", "/api/view%00", "/api\\view", "/API/VIEW", "/assets/..%5c..%5capi", "http://h/api/view",
            "/api/view#x", "/assets/%252e%252e/api/view", "/\u00e4",
        ],
    )  # fmt: skip
    def test_no_spelling_of_a_path_gets_past_the_question(self, client: Client, path: str) -> None:
        answer = client.raw(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        status = int(answer.split()[1])
        assert status in (400, 401, 404), answer
        assert b'"streams"' not in answer

    @pytest.mark.parametrize(
        "path",
        [
            "/assets/../console.py", "/assets/..%2f..%2fpipeline.py", "/assets/%2e%2e%2f__init__.py",
            "/assets//etc/passwd", "/assets/index.html/x", "/assets/", "/assets", "/etc/passwd", "/a.yaml",
        ],
    )  # fmt: skip
    def test_no_file_but_the_page_is_served(self, client: Client, path: str) -> None:
        answer = client.raw(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert int(answer.split()[1]) in (401, 404)

    def test_who_may_look_sees_everything_and_does_nothing(self, client: Client) -> None:
        headers = client.login(LOOK)
        assert client.ask("GET", "/api/view", headers=headers).status == 200
        assert client.ask("POST", "/api/act", PAUSE, headers).status == 403
        assert client.ask("POST", "/api/values", {"of": "log.key", "fields": {}}, headers).status == 403
        assert [line["outcome"] for line in client.audit() if line["who"] == "board"][-2:] == ["refused"] * 2

    def test_values_in_the_state_are_told_to_who_may_act_and_the_asking_is_written_down(
        self, tmp_path: Path
    ) -> None:
        console, client = served(tmp_path)
        own = {"chunks": [{"min": "a-secret-key", "max": None}], "penstock": {"generation": "g"}}
        entry = {"stream": "orders", "namespace": "public", "sync_mode": "cdc", "state": own}
        document = {"type": "STREAM", "streams": [entry], "penstock": {"format_version": 1}}
        StateStore(client.state).save(StateDocument(document))
        try:
            look, act = client.login(LOOK), client.login(ACT)
            asked = {"of": "state", "fields": {}}
            for headers in (look, act):
                shown = client.ask("GET", "/api/state", headers=headers)
                assert shown.status == 200
                assert b"a-secret-key" not in shown.body
            assert client.ask("POST", "/api/values", asked, look).status == 403
            assert b"a-secret-key" in client.ask("POST", "/api/values", asked, act).body
            assert ("ada", "show values: state") in [(line["who"], line["what"]) for line in client.audit()]
        finally:
            console.stop()

    def test_programs_show_a_token_or_a_password_with_each_request(self, client: Client) -> None:
        assert client.ask("GET", "/api/view", authorization=f"Bearer {ACT}").status == 200
        basic = base64.b64encode(f"bob:{PASSWORD}".encode()).decode()
        assert client.ask("GET", "/api/view", authorization=f"Basic {basic}").status == 200
        # A token is no password, and a password no token.
        wrong = base64.b64encode(f"ada:{ACT}".encode()).decode()
        assert client.ask("GET", "/api/view", authorization=f"Basic {wrong}").status == 401
        assert client.ask("GET", "/api/view", authorization=f"Bearer {PASSWORD}").status == 401

    @pytest.mark.parametrize("change", ["name", "expires", "nonce", "signature", "short", "empty"])
    def test_a_cookie_that_was_changed_is_none(self, client: Client, change: str) -> None:
        name, _, value = client.login(LOOK)["cookie"].partition("=")
        parts = value.split(".")
        changed = {
            "name": [b"ada".hex(), *parts[1:]],
            "expires": [parts[0], str(int(parts[1]) + 1), *parts[2:]],
            "nonce": [*parts[:2], parts[2] + "x", parts[3]],
            "signature": [*parts[:3], parts[3][::-1]],
            "short": parts[:3],
            "empty": [""],
        }[change]
        assert client.ask("GET", "/api/view", cookie=f"{name}={'.'.join(changed)}").status == 401

    def test_logging_out_ends_the_session_for_whoever_kept_the_cookie(self, client: Client) -> None:
        headers = client.login()
        assert client.ask("POST", "/api/logout", {}, headers).status == 200
        assert client.ask("GET", "/api/view", headers=headers).status == 401


class TestFromAnotherSite:
    def test_the_cookie_is_for_this_site_and_no_script(self, client: Client) -> None:
        cookie = client.ask("POST", "/api/login", {"token": ACT}).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Domain" not in cookie

    def test_acting_needs_the_proof_of_the_session(self, client: Client) -> None:
        headers, other = client.login(), client.login()
        cookie = {"cookie": headers["cookie"]}
        assert client.ask("POST", "/api/act", PAUSE, cookie).status == 403
        wrong = cookie | {"x-penstock-proof": other["x-penstock-proof"]}
        assert client.ask("POST", "/api/act", PAUSE, wrong).status == 403
        assert client.ask("POST", "/api/logout", {}, cookie).status == 403

    @pytest.mark.parametrize(
        "header",
        [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://127.0.0.1.evil.example"},
            {"origin": "http://localhost:1"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"content-type": "text/plain"},
            {"content-type": "application/x-www-form-urlencoded"},
            {"content-type": "multipart/form-data"},
        ],
    )
    def test_what_another_site_could_send_is_refused(self, client: Client, header: dict[str, str]) -> None:
        headers = client.login() | header
        assert client.ask("POST", "/api/act", PAUSE, headers).status in (403, 415)
        assert client.ask("POST", "/api/login", {"token": ACT}, header).status in (403, 415)
        assert not any(line["what"] == "stream.pause" for line in client.audit())

    def test_nobody_is_told_that_other_sites_may(self, client: Client) -> None:
        got = client.ask("OPTIONS", "/api/act", origin="https://evil.example")
        assert got.status >= 400
        assert not any(name.startswith("access-control") for name in got.headers)

    @pytest.mark.parametrize(
        "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "a b"]
    )
    def test_a_name_that_was_pointed_here_is_not_answered(self, client: Client, host: str) -> None:
        answer = client.raw(f"GET /api/session HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert int(answer.split()[1]) == 421

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "10.1.2.3"])
    def test_addresses_and_own_names_are(self, client: Client, host: str) -> None:
        answer = client.raw(f"GET /api/session HTTP/1.1\r\nHost: {host}:{client.port}\r\n\r\n".encode())
        assert int(answer.split()[1]) == 401

    def test_every_answer_forbids_what_the_page_does_not_need(self, client: Client) -> None:
        for path in ("/", "/assets/app.js", "/api/view", "/nothing"):
            headers = client.ask("GET", path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"

    def test_the_page_has_nothing_inline(self, client: Client) -> None:
        page = client.ask("GET", "/").body.decode()
        assert " style=" not in page
        assert "<style" not in page
        assert " on" + "click=" not in page
        assert page.count("<script") == page.count('<script type="module" src=')


class TestMalformed:
    @pytest.mark.parametrize(
        "lines",
        [
            ["POST /api/login HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 5", "Content-Length: 6"],
            ["POST /api/login HTTP/1.1", "Host: 127.0.0.1", "Transfer-Encoding: chunked"],
            [
                "POST /api/login HTTP/1.1",
                "Host: 127.0.0.1",
                "Content-Length: 5",
                "Transfer-Encoding: chunked",
            ],
            ["POST /api/login HTTP/1.1", "Host: 127.0.0.1", "Content-Length: -1"],
            ["POST /api/login HTTP/1.1", "Host: 127.0.0.1", "Content-Length: +5"],
            ["POST /api/login HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 0x5"],
            ["POST /api/login HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {BODY_BYTES_MAX + 1}"],
            ["GET /api/view HTTP/1.1", "Host: 127.0.0.1", "Host: 127.0.0.1"],
            ["GET /api/view HTTP/1.1"],
            ["GET /api/view HTTP/1.1", "Host: 127.0.0.1", "Cookie: a=b", "Cookie: c=d"],
            ["GET /api/view"],
            ["BREW /api/view HTTP/1.1", "Host: 127.0.0.1"],
            ["PUT /api/act HTTP/1.1", "Host: 127.0.0.1"],
            ["DELETE /api/view HTTP/1.1", "Host: 127.0.0.1"],
            ["TRACE / HTTP/1.1", "Host: 127.0.0.1"],
            ["GET /" + "a" * 5000 + " HTTP/1.1", "Host: 127.0.0.1"],
            ["GET / HTTP/1.1", "Host: 127.0.0.1", *(f"X-{number}: 1" for number in range(200))],
            ["GET / HTTP/1.1", "Host: 127.0.0.1", "X: " + "a" * 70_000],
        ],
    )
    def test_what_is_not_plainly_one_request_is_refused(self, client: Client, lines: list[str]) -> None:
        answer = client.raw("\r\n".join([*lines, "", "hello"]).encode())
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b'{"error"')), answer[:200]
        assert b"hello" not in answer

    def test_one_connection_has_one_request(self, client: Client) -> None:
        head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {ACT}\r\n\r\n"
        answer = client.raw(f"GET / HTTP/1.1\r\n{head}GET /api/view HTTP/1.1\r\n{head}".encode())
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer.lower()

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"{", b"[]", b"null", b'{"action": "stream.pause"}',
            b'{"action": "os.system", "fields": {}}',
            b'{"action": "stream.pause", "fields": {"stream": 5}}',
            b'{"action": "stream.pause", "fields": {"stream": "public.orders", "evil": "x"}}',
            b'{"action": "stream.pause", "fields": {"stream": ""}}',
            b'{"action": "stream.pause", "fields": {"stream": "a\\u0000b"}}',
            b'{"action": "lane.rewind", "fields": {"lane": "file"}}',
            b'{"action": ["stream.pause"], "fields": {}}', b"[" * 20000,
        ],
    )  # fmt: skip
    def test_an_action_is_known_and_has_its_texts_or_is_none(self, client: Client, body: bytes) -> None:
        headers = client.login() | {"content-type": "application/json"}
        assert client.ask("POST", "/api/act", body, headers).status == 400
        assert not any(
            line["what"] in ("stream.pause", "os.system", "lane.rewind") for line in client.audit()
        )

    @pytest.mark.parametrize(
        "stream", ["../../etc/passwd", "public.orders' OR 1=1 --", "no such.stream", "<script>"]
    )
    def test_names_are_names_and_never_paths_or_queries(self, client: Client, stream: str) -> None:
        headers = client.login()
        answer = client.ask(
            "POST", "/api/act", {"action": "stream.pause", "fields": {"stream": stream}}, headers
        )
        assert answer.status == 409
        assert not (client.state / "orders").exists()
        query = {"of": "letters.lane", "fields": {"lane": "file", "stream": stream}}
        assert client.ask("POST", "/api/values", query, headers).json["shown"] == []
        lane = {"of": "letters.lane", "fields": {"lane": "../file", "stream": "public.orders"}}
        assert client.ask("POST", "/api/values", lane, headers).status == 409

    def test_nothing_secret_is_in_what_is_shown(self, client: Client) -> None:
        headers = client.login()
        for path in ("/api/view", "/api/session", "/api/state", "/api/lanes", "/api/audit"):
            body = client.ask("GET", path, headers=headers).body
            for secret in ("very-secret", ACT, LOOK, PASSWORD):
                assert secret.encode() not in body, path


def test_guessing_is_stopped_after_a_few_tries_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console, client = served(tmp_path)
    try:
        tries = [client.ask("POST", "/api/login", {"token": f"guess {n}"}).status for n in range(12)]
        assert tries == [401] * access.FAILURES_MAX + [429] * 2
        assert client.ask("POST", "/api/login", {"token": ACT}).status == 429, "nobody is let in meanwhile"
        assert client.ask("GET", "/api/view", authorization=f"Bearer {ACT}").status == 429
        assert [(line["what"], line["outcome"]) for line in client.audit()] == [
            ("log in", "refused"),
            ("authorization", "refused"),
        ]
        monkeypatch.setattr(access, "_WINDOW_S", 0.0)
        assert client.ask("POST", "/api/login", {"token": ACT}).status == 200
    finally:
        console.stop()
    repeated = {line["what"]: line["repeated"] for line in client.audit() if "repeated" in line}
    assert repeated == {"log in": 12}


@pytest.mark.parametrize(
    "given", ["Bearer guess", "Basic Ym9iOndyb25n", "Basic not base64", "Digest x", "Bearer " + "x" * 5000]
)
def test_a_credential_that_is_not_known_is_written_down_whatever_its_kind(tmp_path: Path, given: str) -> None:
    console, client = served(tmp_path)
    try:
        assert client.ask("GET", "/api/view", authorization=given).status == 401
        (line,) = client.audit()
        assert (line["who"], line["from"], line["what"]) == ("", "127.0.0.1", "authorization")
        assert given.partition(" ")[2] not in json.dumps(line)
    finally:
        console.stop()


def test_a_console_whose_address_is_taken_touches_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(AddressError):
            served(tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        assert not (tmp_path / "state" / "console").exists()


def test_a_console_that_cannot_be_made_gives_its_address_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "console").write_text("in the way")
    with pytest.raises(OSError, match="console"):
        served(tmp_path, listen=listen)
    (tmp_path / "state" / "console").unlink()
    console, _ = served(tmp_path, listen=listen)
    console.stop()


def test_a_read_only_console_does_nothing_for_anybody(tmp_path: Path) -> None:
    console, client = served(tmp_path, read_only=True)
    try:
        headers = client.login()
        assert client.ask("GET", "/api/session", headers=headers).json["may_act"] is False
        assert client.ask("POST", "/api/act", PAUSE, headers).status == 403
        assert client.ask("POST", "/api/values", {"of": "log.key", "fields": {}}, headers).status == 403
        assert not (client.state / "state.json").exists()
    finally:
        console.stop()


def test_an_action_is_written_down_before_and_after_and_done_as_the_command_does_it(tmp_path: Path) -> None:
    console, client = served(tmp_path)
    try:
        headers = client.login()
        fields = {"stream": "public.orders", "reason": "a <b>migration</b>"}
        answer = client.ask("POST", "/api/act", {"action": "stream.pause", "fields": fields}, headers)
        assert answer.status == 200, answer.body
        lines = [(line["who"], line["outcome"]) for line in client.audit() if line["what"] == "stream.pause"]
        assert lines == [("ada", "asked"), ("ada", "done")]
        wait_until(
            lambda: client.ask("GET", "/api/view", headers=headers).json["totals"]["states"] == {"paused": 1},
            "the page to show it",
        )
        paused = client.ask("GET", "/api/view", headers=headers).json["streams"][0]["paused"]
        assert paused["reason"] == fields["reason"]
    finally:
        console.stop()


def test_a_session_outlives_a_restart_and_ends_when_its_credential_is_changed(tmp_path: Path) -> None:
    console, client = served(tmp_path)
    headers = client.login()
    console.stop()
    console, client = served(tmp_path)
    # Another port is another console to the browser, which names cookies by it.
    cookie = f"penstock_console_{client.port}=" + headers["cookie"].partition("=")[2]
    assert client.ask("GET", "/api/view", cookie=cookie).status == 200
    console.stop()
    changed = [{"name": "ada", "role": "act", "token": "another"}]
    console, client = served(tmp_path, access=changed)
    cookie = f"penstock_console_{client.port}=" + headers["cookie"].partition("=")[2]
    assert client.ask("GET", "/api/view", cookie=cookie).status == 401
    console.stop()


def test_a_session_that_was_ended_stays_so_over_a_restart_and_for_every_console(tmp_path: Path) -> None:
    def with_port(headers: dict[str, str], client: Client) -> dict[str, str]:
        cookie = f"penstock_console_{client.port}=" + headers["cookie"].partition("=")[2]
        return headers | {"cookie": cookie}

    console, client = served(tmp_path)
    beside, other = served(tmp_path)
    ended, kept = client.login(), client.login()
    assert other.ask("GET", "/api/view", headers=with_port(ended, other)).status == 200
    assert client.ask("POST", "/api/logout", {}, ended).status == 200
    assert other.ask("GET", "/api/view", headers=with_port(ended, other)).status == 401
    beside.stop()
    console.stop()
    console, client = served(tmp_path)
    assert client.ask("GET", "/api/view", headers=with_port(ended, client)).status == 401
    assert client.ask("GET", "/api/view", headers=with_port(kept, client)).status == 200
    console.stop()


def test_sessions_that_were_ended_are_kept_for_their_time_and_in_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.console.ended.SESSIONS_MAX", 3)
    now = [1_800_000_000.0]
    settings = Config.load(pipeline_file(tmp_path)).console
    person = access.Person("ada", "act")

    def opened() -> access.Access:
        return access.Access(settings, tmp_path / "console", lambda: now[0])

    def begun() -> tuple[str, access.Session]:
        now[0] += 1
        return known.begin(person)

    known = opened()
    sessions = [begun() for _ in range(6)]
    for _, session in sessions[:5]:
        known.end(session)
    assert [opened().session(cookie) is None for cookie, _ in sessions] == [True] * 5 + [False]
    file = tmp_path / "console" / "ended.json"
    assert len(json.loads(file.read_bytes())["people"]["ada"]["sessions"]) == 3
    now[0] += access.SESSION_S + 10
    cookie, session = begun()
    known.end(session)
    left = json.loads(file.read_bytes())["people"]["ada"]["sessions"]
    assert list(left) == [session.nonce], "others ended by themselves"
    cookie, _ = begun()
    now[0] += 2
    file.write_bytes(b'{"format_ver')
    assert opened().session(cookie) is None, "nobody can tell any more which were ended"
    later = begun()[0]
    assert opened().session(later) is not None


def test_who_logs_out_often_ends_nobody_elses_session_and_revives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.console.ended.SESSIONS_MAX", 3)
    now = [1_800_000_000.0]
    settings = Config.load(pipeline_file(tmp_path)).console
    known = access.Access(settings, tmp_path / "console", lambda: now[0])
    bob = access.Person("bob", "act")
    kept, (gone, session) = known.begin(bob)[0], known.begin(bob)
    known.end(session)
    for _ in range(10):
        now[0] += 1
        known.end(known.begin(access.Person("ada", "act"))[1])
    again = access.Access(settings, tmp_path / "console", lambda: now[0])
    for each in (known, again):
        assert each.session(kept) is not None
        assert each.session(gone) is None


def test_sessions_that_an_earlier_version_ended_stay_so(tmp_path: Path) -> None:
    settings = Config.load(pipeline_file(tmp_path)).console
    known = access.Access(settings, tmp_path / "console")
    (kept, _), (gone, session) = (known.begin(access.Person("ada", "act")) for _ in range(2))
    said = {"format_version": 1, "until": 0, "sessions": {session.nonce: session.expires}}
    (tmp_path / "console" / "ended.json").write_text(json.dumps(said))
    for _ in range(2):
        assert known.session(gone) is None
        assert known.session(kept) is not None
        known.end(known.begin(access.Person("bob", "act"))[1])  # which writes the file anew


def test_without_access_a_token_is_made_that_only_this_user_can_read(tmp_path: Path) -> None:
    console, client = served(tmp_path, access=[])
    try:
        token = console.link.partition("#token=")[2]
        assert len(token) == 64
        for name in ("token", "secret"):
            assert (client.state / "console" / name).stat().st_mode & 0o077 == 0
        assert client.ask("POST", "/api/login", {"token": token}).status == 200
        assert client.ask("POST", "/api/login", {"token": ""}).status == 401
    finally:
        console.stop()


def test_the_command_prints_the_link_to_the_console_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console, client = served(tmp_path, access=[])
    try:
        with said_in(client.state, console.url), pytest.raises(SystemExit) as ended:
            main(["-c", str(tmp_path / "penstock.yaml"), "--json", "console"])
        assert not ended.value.code
        assert json.loads(capsys.readouterr().out) == {"link": console.link, "serves": False}
    finally:
        console.stop()


def test_a_browser_is_started_with_a_code_that_lets_in_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everybody on the machine can read the command line of a browser."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    console, client = served(tmp_path, access=[])
    try:
        with said_in(client.state, console.url), pytest.raises(SystemExit) as ended:
            main(["-c", str(tmp_path / "penstock.yaml"), "--json", "console", "--open"])
        assert not ended.value.code
        token = console.link.partition("#token=")[2]
        url, _, code = opened[0].partition("#code=")
        assert url == f"{console.url}/"
        assert token not in opened[0]
        assert not [path for path in (client.state / "console").iterdir() if code in path.name]
        assert client.ask("POST", "/api/login", {"token": code}).status == 401
        got = client.ask("POST", "/api/login", {"code": code})
        assert (got.status, got.json["role"]) == (200, "act")
        assert client.ask("POST", "/api/login", {"code": code}).status == 401, "once"
        for guess in ("", "../token", "x" * 5000):
            assert client.ask("POST", "/api/login", {"code": guess}).status in (400, 401)
    finally:
        console.stop()


def test_a_code_ends_by_itself_and_is_of_no_use_where_people_have_names(tmp_path: Path) -> None:
    directory = tmp_path / "console"
    settings = Config.load(pipeline_file(tmp_path, access=[])).console
    late = access.Access(settings, directory, lambda: time.time() + access.CODE_S + 1)
    assert late.by_code(access.one_time_code(directory), "a") is None
    named = access.Access(Config.load(pipeline_file(tmp_path)).console, directory)
    assert named.by_code(access.one_time_code(directory), "a") is None
    assert not list(directory.glob("code-*")), "who tries one takes it away"


def test_who_serves_others_without_tls_is_warned(tmp_path: Path) -> None:
    for listen, is_warned in (("127.0.0.1:0", False), ("localhost:0", False), ("0.0.0.0:0", True)):
        console, _client = served(tmp_path, listen=listen)
        console.stop()
        assert ("plain HTTP" in console.warning) is is_warned
    write_certificates(tmp_path)
    files = {"certificate": str(tmp_path / "server.crt"), "key": str(tmp_path / "server.key")}
    console, _client = served(tmp_path, listen="0.0.0.0:0", **files)
    console.stop()
    assert console.warning == ""


def test_an_address_that_others_reach_needs_somebody_who_may(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="access"):
        served(tmp_path, listen="0.0.0.0:0", access=[])


def test_over_tls_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    files = {"certificate": str(tmp_path / "server.crt"), "key": str(tmp_path / "server.key")}
    console, client = served(tmp_path, **files)
    try:
        context = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        connection = http.client.HTTPSConnection("localhost", client.port, timeout=120, context=context)
        body = json.dumps({"token": ACT})
        connection.request("POST", "/api/login", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert "; Secure" in answer.headers["set-cookie"]
        connection.close()
        with pytest.raises((OSError, http.client.HTTPException)):
            client.ask("GET", "/")
    finally:
        console.stop()


def test_behind_a_proxy_that_takes_tls_off_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    console, client = served(tmp_path, hosts=["penstock.example.com"])
    try:
        for host, origin, is_secure in (
            ("penstock.example.com", "https://penstock.example.com", True),
            (f"localhost:{client.port}", f"http://localhost:{client.port}", False),
        ):
            headers = {"host": host, "origin": origin}
            got = client.ask("POST", "/api/login", {"token": ACT}, headers)
            assert got.status == 200
            assert got.headers["set-cookie"].endswith("; Secure") is is_secure
            assert "strict-transport-security" not in got.headers, "that is the proxy's to say"
    finally:
        console.stop()


def test_over_tls_a_name_of_its_own_is_for_tls_from_now_on_and_no_other_is(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    files = {"certificate": str(tmp_path / "server.crt"), "key": str(tmp_path / "server.key")}
    console, client = served(tmp_path, hosts=["penstock.example.com"], **files)
    try:
        context = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        for host, is_kept in (("penstock.example.com:443", True), (f"localhost:{client.port}", False)):
            connection = http.client.HTTPSConnection("localhost", client.port, timeout=120, context=context)
            connection.request("GET", "/", headers={"host": host})
            answer = connection.getresponse()
            assert answer.status == 200
            assert (answer.headers.get("strict-transport-security") is not None) is is_kept
            connection.close()
    finally:
        console.stop()


def test_the_command_listens_by_the_same_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console, _client = served(tmp_path, access=[])
    console.stop()
    for listen in ("0.0.0.0:0", "nowhere"):
        with pytest.raises(SystemExit) as ended:
            main(["-c", str(tmp_path / "penstock.yaml"), "--json", "console", "--listen", listen])
        assert ended.value.code == ConfigError.exit_code
        assert listen in json.loads(capsys.readouterr().out)["error"]["message"]


def test_events_come_to_who_is_known_and_end_with_the_session(client: Client) -> None:
    headers = client.login()
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=120)
    connection.request("GET", "/api/events", headers={"cookie": headers["cookie"]})
    answer = connection.getresponse()
    assert answer.headers["content-type"] == "text/event-stream"
    lines: list[bytes] = []
    while not any(line.startswith(b"data: ") for line in lines):
        lines.append(answer.readline())
    assert "streams" in json.loads(lines[-1][6:])
    client.ask("POST", "/api/logout", {}, headers)
    while answer.readline():
        pass
    connection.close()


def test_who_finds_as_many_listening_as_may_is_told_so(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.console.http.EVENT_STREAMS_MAX", 1)
    headers = client.login()
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=120)
    connection.request("GET", "/api/events", headers={"cookie": headers["cookie"]})
    first = connection.getresponse()
    assert first.readline().startswith(b"retry")
    got = client.ask("GET", "/api/events", headers=headers)
    assert got.status == 503
    assert got.headers["retry-after"]
    assert "As many pages" in got.json["error"]["message"]
    assert client.ask("GET", "/api/view", headers=headers).status == 200, "it can still look"
    first.close()
    connection.close()
    client.ask("POST", "/api/logout", {}, headers)


def test_connections_that_do_nothing_keep_nobody_out_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.console.http.ANSWER_S", 1.0)
    console, client = served(tmp_path)
    idle = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(CONNECTIONS_MAX)]
    try:
        for each in idle:
            each.sendall(b"GET / HT")

        def is_answered() -> bool:
            try:
                return client.ask("GET", "/").status == 200
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)
                return False

        wait_until(is_answered, "the idle ones to be sent away")
    finally:
        for each in idle:
            each.close()
        console.stop()


def test_an_order_that_nobody_can_read_is_said_on_the_page(tmp_path: Path) -> None:
    console, client = served(tmp_path)
    try:
        (client.state / "orders").mkdir(parents=True)
        order = client.state / "orders" / "00000000000000000001-aa.json"
        order.write_bytes(b'{"format_vers')
        headers = client.login()
        wait_until(
            lambda: order.name in client.ask("GET", "/api/view", headers=headers).json["problem"],
            "the page to name the file",
        )
        assert client.ask("GET", "/api/state", headers=headers).status == 200
        assert list(order.parent.iterdir()) == [order], "looking sets nothing aside"
    finally:
        console.stop()
