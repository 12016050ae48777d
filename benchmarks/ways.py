"""Command `python -m benchmarks.ways [--files]`, which counts the source files of a request and of a training step.

One `POST /embed` and one search run in this process with the fake engine, and one step trains `minilm` with SimCSE,
from the sentences of its batch to the new weights. Every Python call into this repository is counted, in all threads. A
coroutine that continues counts as a call. A change of file is a call in a different file from the previous call.
Threads take turns differently each time, so each way is repeated, and the run with the fewest changes of file is
reported.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType

import httpx

from models.cli.command_line import Parser
from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.engines import ENGINES
from serving.service import Service
from serving.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT / package}/" for package in ("serving", "training", "models"))
REPEATS = 5
DOCUMENTS = [{"id": "a", "text": "A cat sits outside.", "metadata": {"year": 2026}}, {"id": "b", "text": "Taxes rose."}]


@contextmanager
def recorded_calls() -> Iterator[list[str]]:
    """Yield a list that gets the file of each call in this thread, and in threads that start inside the block."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            files.append(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def ways(folder: Path, files: list[str]) -> dict[str, list[str]]:
    """Return the files of the calls of each request, in order, from the list of `recorded_calls`."""
    settings = Settings(data=folder, no_demo=True, engine="fake")
    service = Service(settings, ENGINES["fake"](folder), local_corpora(settings, STORES["memory"](folder)))
    app = create_app(service)
    requests = {
        "POST /embed": ("/embed", {"inputs": "A sentence to embed."}),
        "search": ("/corpora/notes/search", {"query": "a feline", "k": 1}),
    }
    found = {}
    async with app.router.lifespan_context(app) as state:
        await service.loaded.wait()

        async def with_state(scope, receive, send):  # type: ignore[no-untyped-def]
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            (await client.put("/corpora/notes")).raise_for_status()
            (await client.post("/corpora/notes/documents", json=DOCUMENTS)).raise_for_status()
            for name, (path, body) in requests.items():
                # Warm up, so that lazy imports and caches do not count.
                (await client.post(path, json=body)).raise_for_status()
                taken = []
                for _ in range(REPEATS):
                    files.clear()
                    (await client.post(path, json=body)).raise_for_status()
                    taken.append(files.copy())
                found[name] = min(taken, key=changes)
    return found


def training_way(folder: Path, files: list[str], backbone: str = "minilm") -> list[str]:
    """Return the files of the calls of a training step with SimCSE, in order, from the list of `recorded_calls`."""
    from training.config import from_preset
    from training.machine.devices import Devices
    from training.run import open_run_corpus
    from training.step import Step, initial_state, make_tokeniser

    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"Sentence number {i} of the corpus.\n" for i in range(8 * (REPEATS + 1))))
    changed = {"corpus": (str(corpus),), "batch_size": 8, "device": "cpu", "precision": "fp32"}
    config, devices = from_preset("simcse", backbone=backbone).override(changed), Devices("cpu")
    state = initial_state(config, devices, None)
    step, tokenise = Step(config, state, devices, None, None), make_tokeniser(config, state.encoder, None, devices)
    batches = open_run_corpus(config, held_out=0).batches(config.batch_size, seed=config.seed)
    step(tokenise(next(batches), 0), config.learning_rate)  # warm up, as above
    taken = []
    for number in range(1, 1 + REPEATS):
        files.clear()
        step(tokenise(next(batches), number), config.learning_rate)
        taken.append(files.copy())
    return min(taken, key=changes)


def changes(files: Sequence[str]) -> int:
    return sum(one != other for one, other in pairwise(files))


def main() -> None:
    """Print the number of calls, of files, and of changes of file, for each request and for a training step."""
    parser = Parser(prog="python -m benchmarks.ways", description=__doc__)
    parser.add_argument("--files", action="store_true", help="also print the files, in order of their first call")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, recorded_calls() as calls:
        found = asyncio.run(ways(Path(folder), calls))
        found["training step"] = training_way(Path(folder), calls)
    for name, files in found.items():
        print(f"{name}: {len(files)} calls, {len(set(files))} files, {changes(files)} changes of file")
        if asked.files:
            for file in dict.fromkeys(files):
                print(f"  {files.count(file):4d}  {Path(file).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
