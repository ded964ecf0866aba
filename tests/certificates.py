"""A certificate for localhost and the authority that signed it, made when a test needs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

_EXTENSIONS = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def write_certificates(directory: Path) -> None:
    """`authority.pem` for clients; `server.pem`: private key, certificate and authority for a server."""
    authority, key = directory / "authority.pem", directory / "authority.key"
    _openssl("req", "-x509", *_key(key), "-out", str(authority), "-days", "2", "-subj", "/CN=tests authority")
    request, server_key, certificate = (directory / f"server.{part}" for part in ("csr", "key", "crt"))
    _openssl("req", *_key(server_key), "-out", str(request), "-subj", "/CN=localhost")
    extensions = directory / "server.extensions"
    extensions.write_text(_EXTENSIONS)
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(authority), "-CAkey", str(key), "-days", "2"),
        *("-CAcreateserial", "-extfile", str(extensions), "-out", str(certificate)),
    )
    parts = (server_key, certificate, authority)
    (directory / "server.pem").write_text("".join(part.read_text() for part in parts))


def _key(path: Path) -> tuple[str, ...]:
    return "-newkey", "rsa:2048", "-nodes", "-keyout", str(path)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=120)
