"""A fake hub in memory, with what `huggingface_hub` needs to store and fetch models and datasets."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

DATASETS = "datasets/"
LARGE = ".safetensors"
"""Suffix of the files that the fake hub reports as stored by git-lfs."""


@dataclass
class Repository:
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, bytes], message: str = "") -> str:
        sha = hashlib.sha1(repr((branch, sorted(files.items()), len(self.commits))).encode()).hexdigest()
        self.commits[sha] = files
        self.branches[branch] = sha
        self.messages.append(message)
        return sha

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.sha(revision)]

    def sha(self, revision: str) -> str:
        return revision if revision in self.commits else self.branches[revision]


@dataclass
class FakeHub:
    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    """Repositories by name. Names of datasets begin with `datasets/`."""
    sent: list[str] = field(default_factory=list)
    """Files that were downloaded."""

    def make(self, name: str, files: dict[str, bytes], *, private: bool = False) -> Repository:
        repository = self.repositories[name] = Repository(private)
        repository.commit("main", {".gitattributes": b"* text\n", **files})
        return repository


@contextmanager
def served() -> Iterator[FakeHub]:
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Answers,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Missing(Exception):
    """Error that the hub reports in X-Error-Code."""


class _Answers(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes. With Nagle's algorithm, each would take 40 ms on a kept connection.
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Do nothing, so that nothing appears on stderr."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.strip("/")
        try:
            kind = DATASETS if path.startswith((DATASETS, f"api/{DATASETS}")) else ""
            if path.startswith(("api/models/", f"api/{DATASETS}")):
                self._json(self._told(kind, path.split("/")[2:]))
            elif path.startswith("api/"):  # Some versions of the client send this request, which no test needs.
                raise _Missing("EntryNotFound")
            else:
                organisation, name, _, revision, *parts = path.removeprefix(kind).split("/")
                repository, revision = self._found(f"{kind}{organisation}/{name}", unquote(revision))
                self._file(repository, revision, unquote("/".join(parts)))
        except _Missing as missing:
            self._send(404, b"{}", {"X-Error-Code": str(missing)})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path.strip("/")
        if path == "api/validate-yaml":
            self._json({"warnings": [], "errors": []})
        elif path == "api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            there = name in self.hub.repositories
            if not there:
                self.hub.make(name, {}, private=wanted.get("private") or wanted.get("visibility") == "private")
            self._json({"url": f"{self.hub.endpoint}/{name}"}, 409 if there else 200)
        else:
            organisation, name, verb, revision = path.removeprefix("api/models/").split("/")
            self._changed(self.hub.repositories[f"{organisation}/{name}"], verb, unquote(revision), body)

    def _told(self, kind: str, parts: list[str]) -> Any:
        verb, revision = (*parts[2:4], "", "")[:2]
        repository, sha = self._found(kind + "/".join(parts[:2]), unquote(revision) or "main")
        if verb != "tree":
            return {"id": "/".join(parts[:2]), "sha": sha, "private": repository.private, "siblings": [], "tags": []}
        return [_entry(path, content) for path, content in repository.commits[sha].items()]

    def _found(self, name: str, revision: str) -> tuple[Repository, str]:
        repository = self.hub.repositories.get(name)
        if repository is None:
            raise _Missing("RepoNotFound")
        if revision not in repository.branches | repository.commits:
            raise _Missing("RevisionNotFound")
        return repository, repository.sha(revision)

    def _file(self, repository: Repository, sha: str, path: str) -> None:
        if path not in repository.commits[sha]:
            raise _Missing("EntryNotFound")
        content = repository.commits[sha][path]
        if self.command == "GET":
            self.hub.sent.append(path)
        self._send(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": sha})

    def _changed(self, repository: Repository, verb: str, revision: str, body: bytes) -> None:
        if verb == "branch":
            there = revision in repository.branches
            repository.branches.setdefault(revision, repository.branches["main"])
            self._json({}, 409 if there else 200)
        elif verb == "preupload":
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            self._json({"files": modes})
        else:
            header, *lines = map(json.loads, body.splitlines())
            if header["value"].get("parentCommit") != repository.branches[revision]:
                self._json({"error": "A commit has happened since. Please refresh and try again."}, 412)
                return
            files = dict(repository.files(revision))
            for line in lines:
                path = line["value"]["path"]
                if line["key"] == "deletedFile":
                    del files[path]
                else:
                    files[path] = base64.b64decode(line["value"]["content"])
            oid = repository.commit(revision, files, header["value"]["summary"])
            self._json({"commitOid": oid, "commitUrl": f"{self.hub.endpoint}/o/n/commit/{oid}", "success": True})

    def _json(self, content: Any, status: int = 200) -> None:
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry = {"type": "file", "path": path, "size": len(content), "oid": git}
    large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return {**entry, "lfs": large} if path.endswith(LARGE) else entry
