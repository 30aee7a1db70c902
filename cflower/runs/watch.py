"""`cflower watch`: the report of a run that is still going on, served on this machine only."""

from collections.abc import Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cflower.errors import CFlowerError, RunFolderError
from cflower.runs.record import RunRecord
from cflower.runs.records import File
from cflower.runs.report.content import page_content
from cflower.runs.report.page import in_script, page

HOST = "127.0.0.1"
WATCHED = (File.CONFIG, File.ROUNDS, File.SUMMARY)


class ReportServer(ThreadingHTTPServer):
    """Serves the page of a run folder at ``/`` and its newest content at ``/content``.

    Port 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, run: Path, port: int = 0) -> None:
        self.run_folder = run
        RunRecord.read(run)  # refuses a folder without a run before there is a server
        try:
            super().__init__((HOST, port), ReportHandler)
        except OSError as error:
            raise RunFolderError(
                f"Cannot serve on port {port}: {error.strerror}. Give another --port, or none."
            ) from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def state(self) -> str:
        """A tag that changes with the run folder."""
        files = [self.run_folder / name for name in WATCHED]
        stats = [(file.name, file.stat().st_mtime_ns) for file in files if file.is_file()]
        return f'"{sha256(repr(stats).encode()).hexdigest()[:16]}"'


class ReportHandler(BaseHTTPRequestHandler):
    """Answers ``GET /`` and ``GET /content``, for requests addressed to this machine."""

    server: ReportServer

    def do_GET(self) -> None:
        """Send the page, its content, or that nothing is new."""
        # A page elsewhere could reach a server here under a name of its own (DNS rebinding).
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(403)
        elif self.path == "/":
            self._send("text/html; charset=utf-8", lambda run: page(page_content(run), live=True))
        elif self.path == "/content":
            self._send("application/json", lambda run: in_script(page_content(run)))
        else:
            self.send_error(404)

    def _send(self, kind: str, make: Callable[[RunRecord], str]) -> None:
        state = self.server.state()
        if self.path != "/" and self.headers.get("If-None-Match") == state:
            self.send_response(304)
            return self.end_headers()
        try:
            body = make(RunRecord.read(self.server.run_folder)).encode()
        except CFlowerError as error:
            return self.send_error(500, explain=str(error))
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), "ETag": state}
        self.send_response(200)
        for name, value in {**headers, "Cache-Control": "no-store"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to the user."""
