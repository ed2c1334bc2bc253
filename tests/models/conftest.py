from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runner.config import ModelConfig, ProfileConfig, SourceConfig, WheelSource

MakeWheel = Callable[..., WheelSource]
MakeModel = Callable[..., ModelConfig]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("KVSWARM_CACHE", str(folder))
    return folder


@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows: real pip, real wheels, no network."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def make_wheel(wheelhouse: Path) -> MakeWheel:
    def make(package: str, contents: dict[str, bytes], version: str = "1.0") -> WheelSource:
        module = package.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        files = {
            **contents,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = [f"{name},sha256={_record_hash(data)},{len(data)}" for name, data in files.items()]
        with zipfile.ZipFile(wheelhouse / f"{module}-{version}-py3-none-any.whl", "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data, zipfile.ZIP_DEFLATED)
            archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]))
        return WheelSource(package=package, version=version, members=list(contents))

    return make


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def make_model() -> MakeModel:
    def make(content: bytes | None = None, *wheels: WheelSource, **source: object) -> ModelConfig:
        """A model of these wheels; size and sha256 are those of ``content`` unless given."""
        if content is not None:
            source = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), **source}
        return ModelConfig(name="tiny", source=SourceConfig(wheels=list(wheels), **source))  # type: ignore[arg-type]

    return make


@pytest.fixture
def profile() -> ProfileConfig:
    return ProfileConfig(
        arch="llama", n_layer=1, n_embd=8, n_head=1, n_head_kv=1, head_dim_k=8, head_dim_v=8, n_ff=8,
        n_vocab=8, n_ctx_train=8, weights_bytes=8,
    )  # fmt: skip


class Server(ThreadingHTTPServer):
    """Serves bytes by path; a path in ``stalled`` sends half of them and then nothing until the test ends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.stalled: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.reached = threading.Event()
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.server.requests.append((self.command, path))
        data = self.server.files.get(path)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.send_header("Content-Type", "text/html" if path.endswith("/") else "application/octet-stream")
        if data is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        else:
            # What Hugging Face's client needs to name the file in its cache.
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if data is None or not body:
            return
        with contextlib.suppress(ConnectionError):
            if path in self.server.stalled:
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                self.server.reached.set()
                self.server.ended.wait()
            else:
                self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True)
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()


@pytest.fixture
def index(wheelhouse: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Server]:
    """Publish the wheelhouse as a package index over HTTP, and point pip at it."""

    def publish() -> Server:
        for wheel in wheelhouse.glob("*.whl"):
            project = wheel.name.split("-")[0].replace("_", "-")
            server.files[f"/simple/{project}/"] = f'<a href="/files/{wheel.name}">{wheel.name}</a>'.encode()
            server.files[f"/files/{wheel.name}"] = wheel.read_bytes()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        return server

    return publish
