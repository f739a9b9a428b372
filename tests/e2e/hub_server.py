"""A hub on this machine: the endpoints of huggingface.co that fetching a model takes, served from folders."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Hub:
    """`repos`: id → revision → folder ("main" must be there). `gated`: ids whose files nobody may read. `fetched`: the
    paths of files that were asked for with GET, and `asked`: all paths."""

    repos: dict[str, dict[str, Path]]
    gated: set[str] = field(default_factory=set)
    fetched: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def environment(self, home: Path) -> dict[str, str]:
        """What a process needs to use this hub, with its cache in `home`."""
        timeouts = {"HF_HUB_ETAG_TIMEOUT": "300", "HF_HUB_DOWNLOAD_TIMEOUT": "300"}  # for a machine that is busy
        here = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
        return here | timeouts

    def find(self, repo: str, revision: str) -> tuple[str, Path] | None:
        """→ (commit, folder) of a revision's name or of a commit."""
        for name, folder in self.repos[repo].items():
            commit = hashlib.sha1(f"{repo} {name}".encode()).hexdigest()
            if revision in (name, commit):
                return commit, folder
        return None


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append(path)
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repo, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        if repo not in self.hub.repos:
            return self._fail(401, "RepoNotFound")
        kind, revision = (rest[0], rest[1]) if rest else ("revision", "main")
        if (found := self.hub.find(repo, revision)) is None:
            return self._fail(404, "RevisionNotFound")
        commit, folder = found
        files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
        if kind == "revision":
            siblings = [{"rfilename": name} for name in files]
            return self._json({"_id": "0", "id": repo, "modelId": repo, "sha": commit, "siblings": siblings})
        if kind == "tree":
            return self._json([_entry(name, path) for name, path in files.items()])
        name = "/".join(rest[2:])
        if repo in self.hub.gated:
            return self._fail(403, "GatedRepo")
        if name not in files:
            return self._fail(404, "EntryNotFound")
        data = files[name].read_bytes()
        if self.command == "GET":
            self.hub.fetched.append(name)
        self._send(200, data, {"ETag": f'"{_digest(files[name])}"', "X-Repo-Commit": commit})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def _entry(name: str, path: Path) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": _digest(path)}


@contextmanager
def serve(repos: dict[str, dict[str, Path]]) -> Iterator[Hub]:
    """A hub on a port of 127.0.0.1 until the block ends."""
    hub = Hub(repos)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
