"""An HTTP server for the files of one folder, in threads of the trainer's process: GET with one range, nothing else.

It knows no versions and lists nothing. Invariants: only who has the token gets a byte; only names that a `FullFolder`
gives are opened, and none outside the folder; at most MAX_CONNECTIONS at a time; a silent peer is dropped.
On a loopback address it speaks plain HTTP; elsewhere TLS, with a certificate of its own that travels in the manifest.
"""

import hmac
import logging
import os
import re
import secrets
import socket
import socketserver
import ssl
import tempfile
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from astraflow.bus.certificates import self_signed
from astraflow.bus.private import write_private
from astraflow.config import is_loopback
from astraflow.errors import ConfigError
from astraflow.messages import Place
from astraflow.ports import host_for_others, host_port
from astraflow.weights.transfer.full_folder import is_file_name

MAX_CONNECTIONS = 64
TIMEOUT_S = 20.0  # of a silent peer
PIECE_BYTES = 1 << 20  # encrypted at a time
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?")

_log = logging.getLogger(__name__)


class FullServer:
    """Serves a folder between `open` and `close`.

    Args:
        advertise: what readers call this machine; "" = `host`, or this machine's name if that is a wildcard.
    """

    def __init__(self, folder: Path, *, host: str, port: int, advertise: str = "") -> None:
        self._folder = folder
        self._address = (host, port)
        self._name = advertise or host_for_others(host)
        self._token = secrets.token_urlsafe(32)
        self._certificate = ""
        self._server: _Server | None = None

    def open(self) -> None:
        """Listen, and answer in threads. Raises ConfigError if that can't be, or TLS needs a package."""
        host, port = self._address
        tls = None
        if not is_loopback(host):
            self._certificate, tls = _own_tls(self._name)
        try:
            self._server = _Server(self._address, folder=self._folder, token=self._token, tls=tls)
        except OSError as exc:
            raise ConfigError(
                f"weights can't be served on {host_port(host, port)}: {exc.strerror}; change weights.listen"
            ) from exc
        threading.Thread(target=self._server.serve_forever, name="weights-server", daemon=True).start()

    def close(self) -> None:
        """Stop listening; what is being sent ends with the process."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def place(self, name: str) -> Place:
        """Where the file `name` of the folder can be read."""
        assert self._server is not None
        scheme, port = "https" if self._certificate else "http", self._server.server_address[1]
        address = f"{scheme}://{host_port(self._name, port)}/{name}"
        return Place(transport="http", address=address, token=self._token, certificate=self._certificate)


def _own_tls(name: str) -> tuple[str, ssl.SSLContext]:
    """A new certificate as PEM, and a context that proves it. The key exists in this process only."""
    certificate, key = self_signed(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads files only
        write_private(Path(folder) / "both.pem", certificate + key)
        context.load_cert_chain(Path(folder) / "both.pem")
    return certificate, context


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], *, folder: Path, token: str, tls: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.folder, self.token, self.tls = folder, token, tls
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)  # the reader tries again, or goes elsewhere

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("weights-server.connection", extra={"client": client_address}, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "AstraFlow", ""
    timeout = TIMEOUT_S

    def setup(self) -> None:
        self.request.settimeout(TIMEOUT_S)
        if self.server.tls is not None:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.connection.close()

    def do_GET(self) -> None:
        expected, given = f"Bearer {self.server.token}", self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), expected.encode()):
            self.send_error(HTTPStatus.UNAUTHORIZED)
            return
        name = self.path.removeprefix("/")
        if not is_file_name(name):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            file = (self.server.folder / name).open("rb")
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            self._send_range(file)

    def _send_range(self, file: Any) -> None:
        size = os.fstat(file.fileno()).st_size
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, last = (int(wanted[1]), min(int(wanted[2] or size), size - 1)) if wanted else (0, -1)
        if start > last:
            self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Range", f"bytes {start}-{last}/{size}")
        self.send_header("Content-Length", str(last - start + 1))
        self.end_headers()
        if self.server.tls is None:
            self.connection.sendfile(file, start, last - start + 1)
            return
        file.seek(start)
        left = last - start + 1
        while left and (piece := file.read(min(left, PIECE_BYTES))):
            self.connection.sendall(piece)
            left -= len(piece)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("weights-server.request", extra={"text": format % args, "client": self.client_address})
