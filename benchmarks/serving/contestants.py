"""Contestants: the servers and libraries that a benchmark compares. Each runs in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.peers import CONVERTED, EXPORTED, FLAT, GGUF, environment, python
from benchmarks.serving.client import Address, ReplyError, Sample, closed_loop, embed, open_loop
from benchmarks.serving.loads import MODEL_NAME, Load, Population, Request
from benchmarks.serving.processes import ask, free_port
from models import cpus
from models.bundle.sources import resolve

BUNDLE = Path("artifacts/minilm")
OURS = "isosphere"
MOST_TOKENS = 256
"""Maximum tokens that `minilm` reads of a text."""
UNFAIR = ("OMP_", "GOMP_", "KMP_", "MKL_", "RAYON_", "INFINITY_", "ISOSPHERE_")
"""Prefixes of environment variables that are not passed on, because they would affect only some contestants."""
SECONDS_TO_START = 180.0
SECONDS_TO_END = 30.0
SCRIPTS = Path(__file__).parents[1] / "peers"
Command = tuple[str | Path, ...]
Vectors = np.ndarray[Any, np.dtype[np.float64]]


class Absent(RuntimeError):
    """A contestant can't start, or has failed. The message contains the reason."""


@dataclass(frozen=True)
class Turn:
    """The work of a contestant for one turn."""

    load: Load
    requests: Iterator[Request]
    seconds: float
    rate: float = 0.0
    """Requests per second of an open loop."""
    seed: int = 0
    """Seed of the random times at which requests are sent."""


class Contestant(ABC):
    """A running contestant."""

    pid: int

    def takes(self, load: Load) -> bool:  # noqa: ARG002 - a server takes any
        """Return whether the contestant supports the load."""
        return True

    def about(self) -> dict[str, Any]:
        """Return facts that the contestant reports about itself."""
        return {}

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors (N, D) of `texts`, for comparison with our server's vectors."""

    @abstractmethod
    def take(self, turn: Turn) -> Sample:
        """Process the requests of the turn. Requests that are pending when the time is up are completed."""


@dataclass(frozen=True)
class Spec:
    """The start command and properties of a contestant."""

    command: Command
    """Command line of the contestant. `{port}` and `{data}` are replaced by a free port and an empty folder."""
    note: str
    path: str | None = "/embeddings"
    """Path of the route in OpenAI's format. None for a library."""
    embeds: bool = True
    """True if the contestant returns real embeddings, False if it returns a constant reply."""
    most_texts: int | None = None
    """Maximum texts of a request. None means no limit."""
    cuts_off_sep: bool = False
    """True if the contestant truncates long texts without a final [SEP]. Vectors of such texts are not compared."""
    remembers: bool = False
    """True if the first start measures something that later starts read from the user's cache folder."""


def server_command(*options: str | Path) -> Command:
    """Return the command of our server with these options."""
    return (sys.executable, "-m", "serving", "--data", "{data}", "--port", "{port}", "--no-demo", *options)


def specs() -> dict[str, Spec]:
    own, minilm = Path(sys.executable), resolve("minilm")
    route, library = SCRIPTS / "route.py", SCRIPTS / "library.py"
    peer = python("sentence-transformers")
    infinity: Command = (environment("infinity") / "bin" / "infinity_emb", "v2", "--device", "cpu")
    infinity += ("--port", "{port}", "--host", "127.0.0.1", "--served-model-name", MODEL_NAME)
    llama: Command = (python("llama-cpp"), "-m", "llama_cpp.server", "--model", GGUF, "--embedding", "true")
    llama += ("--port", "{port}", "--n_batch", str(MOST_TOKENS))
    llama += ("--n_threads", str(cpus.available()), "--n_threads_batch", str(cpus.available()))
    bare = BUNDLE, str(cpus.available())
    return {
        OURS: Spec(
            server_command("--bundle", BUNDLE), "our server at its default settings", "/v1/embeddings", remembers=True
        ),
        "infinity_torch": Spec((*infinity, "--model-id", minilm, "--engine", "torch"), "infinity-emb"),
        "infinity_optimum": Spec(
            ("env", "-C", FLAT, *infinity, "--model-id", ".", "--engine", "optimum", "--pooling-method", "mean"),
            "infinity-emb on a local folder with an ONNX graph",
        ),
        "st_torch": Spec((own, route, "torch", minilm, "{port}"), "sentence-transformers, torch fp32, FastAPI route"),
        "st_onnx": Spec((peer, route, "onnx", EXPORTED["onnx"], "{port}"), "its ONNX backend, the same route"),
        "st_openvino": Spec((peer, route, "openvino", EXPORTED["openvino"], "{port}"), "its OpenVINO backend, too"),
        "fastembed": Spec(
            (python("fastembed"), library, "fastembed", BUNDLE), "a library without HTTP, for one caller", None
        ),
        "embed_anything": Spec(
            (python("embed-anything"), library, "embed-anything", EXPORTED["onnx"]),
            "a library without HTTP, for one caller",
            None,
        ),
        "ctranslate2": Spec((peer, library, "ctranslate2", CONVERTED), "an engine; tokenizer and pooling added", None),
        "llama_cpp": Spec(llama, "llama.cpp's server for Python, f16", "/v1/embeddings", cuts_off_sep=True),
        "bare_onnxruntime": Spec((own, library, "onnxruntime", *bare), "ceiling of the engine, fp32", None),
        "bare_openvino": Spec(
            (own, library, "openvino", *bare), "ceiling of the engine, bf16 if the CPU supports it", None
        ),
        "bare_call": Spec(
            (own, library, "openvino", *bare, "call"),
            "floor of one request: one run on its tokenised texts",
            None,
            most_texts=1,
        ),
        "constant_reply": Spec(
            (own, route, "constant", "", "{port}"), "ceiling of HTTP and JSON: no model", embeds=False
        ),
    }


@contextmanager
def started(
    spec: Spec, populations: Mapping[str, Population], max_length: int, probe: str, cache: Path
) -> Iterator[Contestant]:
    """Start a contestant, wait until it has embedded `probe`, and stop it at the end of the block.

    The contestant may cache its own measurements in `cache`.

    Raises:
        Absent: the contestant's program is missing, ends, answers with an error, or is not ready in time.
        OSError: the connection broke, or a reply did not come in time.
        ValueError: the contestant's answer can't be read.
    """
    with TemporaryDirectory() as folder:
        port, log = free_port(), Path(folder) / "log"
        given = {"{port}": str(port), "{data}": str(Path(folder) / "data")}
        command = [given.get(str(part), str(part)) for part in spec.command]
        variables = fair(os.environ) | ({"XDG_CACHE_HOME": str(cache)} if spec.remembers else {})
        with log.open("w") as errors:
            talk = subprocess.PIPE if spec.path is None else errors
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=talk, stderr=errors, text=True, env=variables
                )
            except FileNotFoundError:
                raise Absent(f"{command[0]} does not exist: install it with `python -m benchmarks.peers`") from None
        try:
            if spec.path is None:
                yield Library(process, populations, max_length, log, spec.most_texts)
            else:
                yield Server(process, Address(port, spec.path), probe, log)
        finally:
            _end(process)


def fair(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every contestant: `environment` without the `UNFAIR` variables, and without network."""
    kept = {name: value for name, value in environment.items() if not name.startswith(UNFAIR)}
    return kept | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "true"}


class Server(Contestant):
    """A contestant that is a server and gets its requests over HTTP."""

    def __init__(self, process: subprocess.Popen[str], address: Address, probe: str, log: Path) -> None:
        self.pid, self.address = process.pid, address
        deadline, refusal = time.monotonic() + SECONDS_TO_START, "no reply"
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise Absent(_last_words(log))
            try:
                self.embed([probe])
            except ConnectionRefusedError:
                time.sleep(0.02)
            except ReplyError as error:
                if "HTTP/1.1 503" not in (refusal := str(error)):
                    raise Absent(refusal) from None
                time.sleep(0.02)
            else:
                return
        raise Absent(f"not ready after {SECONDS_TO_START:.0f} seconds: {refusal}")

    def about(self) -> dict[str, Any]:
        """Return the engine and precision from the server's /info, or nothing if there is no such route."""
        with closing(HTTPConnection(self.address.host, self.address.port, timeout=SECONDS_TO_END)) as connection:
            try:
                connection.request("GET", "/info")
                reply = connection.getresponse()
                said = json.loads(reply.read()) if reply.status == 200 else {}
            except HTTPException as error:
                raise ReplyError(f"/info: {error!r}") from error
        return {key: said[key] for key in ("engine", "precision") if key in said}

    def embed(self, texts: Sequence[str]) -> Vectors:
        return embed(self.address, texts)

    def take(self, turn: Turn) -> Sample:
        if turn.load.capacity is None:
            return closed_loop(self.address, turn.requests, turn.load.clients, turn.seconds)
        return open_loop(self.address, turn.requests, turn.rate, turn.seconds, turn.seed)


class Library(Contestant):
    """A contestant that is a library. It receives its tasks through pipes and measures its own time."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        populations: Mapping[str, Population],
        max_length: int,
        log: Path,
        most_texts: int | None,
    ) -> None:
        self.pid, self._process, self._log = process.pid, process, log
        self._most_texts = most_texts
        given = {name: asdict(population) for name, population in populations.items()}
        self._ask({"populations": given, "max_length": max_length})

    def takes(self, load: Load) -> bool:
        """Return whether one client sends the load, because a library processes one call at a time."""
        one_caller = load.clients == 1 and load.capacity is None
        return one_caller and (self._most_texts is None or load.per_request <= self._most_texts)

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.array(self._ask({"embed": list(texts)})["vectors"])

    def take(self, turn: Turn) -> Sample:
        """Run the turn. The process already has the texts, and iterates over them itself."""
        load = turn.load
        return Sample(**self._ask({"texts": load.texts, "per_request": load.per_request, "seconds": turn.seconds}))

    def _ask(self, content: dict[str, Any]) -> dict[str, Any]:
        try:
            return ask(self._process, content)
        except (BrokenPipeError, EOFError):
            raise Absent(_last_words(self._log)) from None


def _last_words(log: Path) -> str:
    """Return the last line of the log that contains the reason why a process ended."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line] or lines or ["it ended without a message"]
    return said[-1][:300]


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
