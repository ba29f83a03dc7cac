"""A small Hugging Face hub on 127.0.0.1: folders of this machine as repositories."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REFUSALS = {
    "gated": (403, "GatedRepo"),
    "private": (401, "RepoNotFound"),
    "broken": (418, ""),
}


class HubServer(ThreadingHTTPServer):
    """Serves what huggingface_hub asks a hub for, and keeps the list of files that it asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.revisions: dict[str, dict[str, Path]] = {}
        self.refused: dict[str, str] = {}
        self.sent: list[str] = []
        self.tokens: set[str] = set()

    def publish(self, repository: str, folder: Path, branch: str = "main") -> str:
        """Serve ``folder`` as the newest commit of a branch; returns the commit."""
        commit = hashlib.sha1(str((repository, folder, branch)).encode()).hexdigest()
        self.revisions.setdefault(repository, {}).update({branch: folder, commit: folder})
        return commit

    def commit(self, repository: str, folder: Path) -> str:
        """The commit whose files are those in ``folder``."""
        commits = self.revisions[repository].items()
        (found,) = [name for name, other in commits if other == folder and len(name) == 40]
        return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]
        if parts[:2] == ["api", "models"]:
            owner, name, what, revision = [*parts[2:6], "revision", "main"][:4]
        elif parts[2:3] == ["resolve"]:
            owner, name, what, revision = parts[:4]
        else:
            return self._answer(404)
        self.server.tokens.add(self.headers.get("Authorization", ""))
        repository = f"{owner}/{name}"
        refusal = self.server.refused.get(repository)
        if refusal:
            return self._answer(*REFUSALS[refusal])
        if repository not in self.server.revisions:
            return self._answer(404, "RepoNotFound")
        folder = self.server.revisions[repository].get(revision)
        if folder is None:
            return self._answer(404, "RevisionNotFound")
        commit = self.server.commit(repository, folder)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if what == "revision":
            siblings = [{"rfilename": path.name} for path in files]
            facts = {"id": repository, "sha": commit, "siblings": siblings}
            return self._answer(200, commit=commit, content=json.dumps(facts).encode())
        if what == "tree":
            tree = [
                {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": _digest(p)}
                for p in files
            ]
            return self._answer(200, commit=commit, content=json.dumps(tree).encode())
        path = folder / parts[4]
        if not path.is_file():
            return self._answer(404, "EntryNotFound", commit)
        if self.command == "GET":
            self.server.sent.append(path.name)
        return self._answer(200, "", commit, path.read_bytes(), _digest(path))

    do_HEAD = do_GET  # noqa: N815

    def _answer(
        self, status: int, code: str = "", commit: str = "", content: bytes = b"", etag: str = ""
    ) -> None:
        self.send_response(status)
        told = {"X-Error-Code": code, "X-Repo-Commit": commit, "ETag": f'"{etag}"' if etag else ""}
        for key, value in told.items():
            if value:
                self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
