"""A stand-in for the Hugging Face hub on the loopback interface: repositories in memory, behind the hub's own HTTP calls.

It answers what huggingface_hub asks when it downloads and uploads models: metadata of a revision, HEAD and GET of files with
the commit and etag in headers, creation of a repository, pre-upload, LFS batch, commit. Private repositories want a token.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of_the_tests"  # of no account anywhere
LFS_SUFFIXES = (".safetensors", ".png", ".bin", ".pth")


@dataclass
class Repository:
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Commit -> path -> content."""
    refs: dict[str, str] = field(default_factory=dict)
    """Branch or tag -> commit."""

    def commit(self, changes: dict[str, bytes], branch: str = "main") -> str:
        files = {**self.commits.get(self.refs.get(branch, ""), {}), **changes}
        commit = hashlib.sha1(repr((branch, len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[commit] = files
        self.refs[branch] = commit
        return commit


@dataclass
class Hub:
    """The repositories by name, and every request that was made."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    lfs: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    address: str = ""

    def add(self, name: str, files: dict[str, bytes], branch: str = "main", private: bool = False) -> str:
        return self.repositories.setdefault(name, Repository(private)).commit(files, branch)


@contextmanager
def serve() -> Iterator[Hub]:
    """Run the stand-in inside a `with` block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        address = urlsplit(self.path)
        path, query = unquote(address.path), parse_qs(address.query)
        self.hub.requests.append(f"{self.command} {path}")
        body = self._body()
        try:
            for method, pattern, answer in ROUTES:
                match = re.fullmatch(pattern, path)
                if match and self.command in method:
                    answer(self, body, query, *match.groups())
                    return
            raise _Refused(404, "EntryNotFound")
        except _Refused as refusal:
            self._send(refusal.status, b"", {"X-Error-Code": refusal.code, "X-Error-Message": refusal.code})

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().strip(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _is_logged_in(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repository(self, name: str) -> Repository:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and not self._is_logged_in()):
            raise _Refused(401, "RepoNotFound")
        return repository

    def _require_login(self) -> None:
        if not self._is_logged_in():
            raise _Refused(401, "Unauthorized")

    def _revision(self, name: str, revision: str) -> tuple[str, dict[str, bytes]]:
        repository = self._repository(name)
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            raise _Refused(404, "RevisionNotFound")
        return commit, repository.commits[commit]

    # ------------------------------------------------------------------------------------------------ answers

    def home(self, body: bytes, query: dict) -> None:
        self._send(200, b"a hub")

    def whoami(self, body: bytes, query: dict) -> None:
        self._require_login()
        self._send_json({"name": "someone", "type": "user", "orgs": []})

    def model_info(self, body: bytes, query: dict, name: str, revision: str | None = None) -> None:
        commit, files = self._revision(name, revision or "main")
        siblings = [{"rfilename": path} for path in sorted(files)]
        self._send_json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []})

    def tree(self, body: bytes, query: dict, name: str, revision: str) -> None:
        _, files = self._revision(name, revision)
        entries = [
            {
                "type": "file",
                "path": path,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }
            for path, content in sorted(files.items())
        ]
        self._send_json(entries)

    def file(self, body: bytes, query: dict, name: str, revision: str, path: str) -> None:
        commit, files = self._revision(name, revision)
        if path not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        digest = hashlib.sha256(files[path]).hexdigest()
        self._send(200, files[path], {"ETag": f'"{digest}"', "X-Repo-Commit": commit})

    def create(self, body: bytes, query: dict) -> None:
        self._require_login()
        wanted = json.loads(body)
        name = f"{wanted.get('organization') or 'someone'}/{wanted['name']}"
        repository = self.hub.repositories.setdefault(name, Repository(wanted.get("visibility") == "private"))
        repository.refs.setdefault("main", repository.commit({}))
        self._send_json({"url": f"{self.hub.address}/{name}", "name": name, "id": name})

    def branch(self, body: bytes, query: dict, name: str, branch: str) -> None:
        self._require_login()
        repository = self._repository(name)
        repository.refs[branch] = repository.refs["main"]
        self._send_json({})

    def validate_yaml(self, body: bytes, query: dict) -> None:
        self._send_json({"errors": [], "warnings": []})

    def preupload(self, body: bytes, query: dict, name: str, revision: str) -> None:
        self._require_login()
        self._revision(name, revision)
        answers = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._send_json({"files": answers})

    def lfs_batch(self, body: bytes, query: dict, name: str) -> None:
        self._require_login()
        objects = [
            {**thing, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{thing['oid']}", "header": {}}}}
            for thing in json.loads(body)["objects"]
        ]
        self._send_json({"transfer": "basic", "objects": objects})

    def lfs_put(self, body: bytes, query: dict, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refused(400, "WrongDigest")
        self.hub.lfs[oid] = body
        self._send(200, b"")

    def commit(self, body: bytes, query: dict, name: str, revision: str) -> None:
        self._require_login()
        self._revision(name, revision)
        changes: dict[str, bytes] = {}
        for line in body.decode().splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                changes[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "lfsFile":
                changes[entry["value"]["path"]] = self.hub.lfs[entry["value"]["oid"]]
        commit = self._repository(name).commit(changes, revision)
        self._send_json(
            {"success": True, "commitOid": commit, "commitUrl": f"{self.hub.address}/{name}/commit/{commit}"}
        )


_NAME = r"([\w.-]+/[\w.-]+)"
ROUTES: list[tuple[tuple[str, ...], str, Any]] = [
    (("GET", "HEAD"), "/?", _Handler.home),
    (("GET",), "/api/whoami-v2", _Handler.whoami),
    (("GET",), f"/api/models/{_NAME}", _Handler.model_info),
    (("GET",), f"/api/models/{_NAME}/revision/(.+)", _Handler.model_info),
    (("GET",), f"/api/models/{_NAME}/tree/([^/]+)", _Handler.tree),
    (("GET", "HEAD"), f"/{_NAME}/resolve/([^/]+)/(.+)", _Handler.file),
    (("POST",), f"/api/models/{_NAME}/branch/(.+)", _Handler.branch),
    (("POST",), "/api/repos/create", _Handler.create),
    (("POST",), "/api/validate-yaml", _Handler.validate_yaml),
    (("POST",), f"/api/models/{_NAME}/preupload/(.+)", _Handler.preupload),
    (("POST",), f"/{_NAME}.git/info/lfs/objects/batch", _Handler.lfs_batch),
    (("PUT",), r"/lfs/(\w+)", _Handler.lfs_put),
    (("POST",), f"/api/models/{_NAME}/commit/(.+)", _Handler.commit),
]
