"""`fspo watch`: the report page of a run that is still training, served on loopback only.

The page requests `main` every second and gets it only if the run has written something new. The folder is read on
request, for at most a share of the time, so that training is not slowed down.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fspo.report.report_run import load
from fspo.report.run_page import content, frame
from fspo.runs import rows
from fspo.runs.folder import run_folder

__all__ = ["LivePage", "Server", "open_server"]

LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 10
SHARE = 0.1  # largest share of the time that reading and drawing the run may take


class LivePage:
    """The run's page, drawn again only when its files have changed."""

    def __init__(self, folder: Path) -> None:
        self.given = folder
        self._lock = threading.Lock()
        self._stamp: Any = None
        self._main = Markup()
        self._due = 0.0

    @property
    def folder(self) -> Path:
        """The run's folder, which a TRL script may make only after the page was opened."""
        return run_folder(self.given)

    def main(self) -> tuple[Markup, str]:
        """The content and its version."""
        with self._lock:
            stamp = self._files()
            if stamp != self._stamp and time.monotonic() >= self._due:
                start = time.monotonic()
                self._main = content([load(self.folder)])
                self._stamp = stamp
                self._due = time.monotonic() + (time.monotonic() - start) * (1 / SHARE - 1)
            return self._main, f'"{hashlib.sha256(self._main.encode()).hexdigest()[:20]}"'

    def page(self) -> str:
        main, version = self.main()
        return frame([self.folder.resolve().name], main, version)

    def _files(self) -> list[tuple[str, int, int]]:
        """Name, size and time of what the run has written."""
        paths = (*self.folder.glob("*.jsonl"), self.folder / "config.yaml", rows.folder_of(self.folder))
        stats = [(path.name, path.stat()) for path in paths if path.exists()]
        return sorted((name, status.st_size, status.st_mtime_ns) for name, status in stats)


class Server(ThreadingHTTPServer):
    """Bound to loopback, for a browser on this machine. Idle connections do not keep it from answering."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.source = LivePage(folder)
        super().__init__((LOOPBACK, port), Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes the connection early is not an error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = IDLE_SECONDS  # of the socket: a connection that sends nothing, or takes nothing, is closed

    def do_GET(self) -> None:
        # Another site's host name may be made to point here (DNS rebinding); that site could then read the run.
        if self.headers.get("Host") not in self.server.hosts:
            self._send(HTTPStatus.FORBIDDEN, "this server answers only to its own address\n", "text/plain")
        elif not self.server.source.folder.is_dir():
            self._send(HTTPStatus.GONE, "the run's folder is gone\n", "text/plain")
        elif self.path == "/":
            self._send(HTTPStatus.OK, self.server.source.page(), "text/html")
        elif self.path == "/main":
            text, version = self.server.source.main()
            if self.headers.get("If-None-Match") == version:
                self._send(HTTPStatus.NOT_MODIFIED, "", "text/html", version)
            else:
                self._send(HTTPStatus.OK, text, "text/html", version)
        else:
            self._send(HTTPStatus.NOT_FOUND, "there is nothing here\n", "text/plain")

    def _send(self, status: HTTPStatus, text: str, kind: str, version: str | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if version is not None:
            self.send_header("ETag", version)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def open_server(folder: str | Path, port: int = 0) -> Server:
    """A server for the run's page; `serve_forever` runs it."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder: give the folder that `fspo train --out` writes")
    try:
        return Server(path, port)
    except OSError as error:
        raise ValueError(
            f"port {port} cannot be used ({error.strerror}): give another, or 0 for any free one"
        ) from None
