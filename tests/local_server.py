"""A web server on 127.0.0.1 that goes wrong on demand, for the tests of fetching."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves bytes by path, with Range; ``faults`` are what goes wrong, one for each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.etag = '"1"'
        self.requests: list[tuple[str, str | None]] = []

    def publish(self, number: int, content: bytes) -> None:
        self.files[f"/cache/epub/{number}/pg{number}.txt"] = content


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path, b"")
        self.server.requests.append((self.path.rsplit("/", 1)[1], self.headers["Range"]))
        fault = self.server.faults.pop(0) if self.server.faults else ""
        start, status = 0, 200 if content else 404
        if self.headers["If-Range"] == self.server.etag and fault != "no range":
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            status = 206 if start < len(content) else 416
        if fault.isdecimal():
            status, start, content = int(fault), 0, b""
        start += 3 * (fault == "other range")
        rest = content[start:]
        self.send_response(status)
        self.send_header("ETag", self.server.etag)
        self.send_header("Retry-After", "7")
        self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: len(rest) // 2] if fault == "cut" else rest)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""
