"""Command `python -m benchmarks.ways [--files]`, which counts the source files that a request passes through.

One `POST /embed` and one search run in this process with the fake engine. Every Python call into this repository is
counted, in all threads. A coroutine that continues counts as a call. A change of file is a call in a different file
from the previous call. Threads take turns differently each time, so each request is repeated, and the run with the
fewest changes of file is reported.
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
from typing import Self

import httpx

from models.cli.command_line import Parser
from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.engines import ENGINES
from serving.service import Service
from serving.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT / package}/" for package in ("serving", "models"))
REPEATS = 5
DOCUMENTS = [{"id": "a", "text": "A cat sits outside.", "metadata": {"year": 2026}}, {"id": "b", "text": "Taxes rose."}]


class Recorder:
    """Profile function of this thread, and of threads that start inside the block.

    It stores the file of each call while `recording` is active.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self._active = False

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[list[str]]:
        """Yield a list with the file of each call in the block. The list is complete after the block."""
        self.files = []
        self._active = True
        try:
            yield self.files
        finally:
            self._active = False

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if self._active and event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.files.append(frame.f_code.co_filename)


async def ways(folder: Path, recorder: Recorder) -> dict[str, list[str]]:
    """Return the files of the calls of each request, in order."""
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
                    with recorder.recording() as files:
                        (await client.post(path, json=body)).raise_for_status()
                    taken.append(files)
                found[name] = min(taken, key=changes)
    return found


def changes(files: Sequence[str]) -> int:
    """Return the number of changes of file."""
    return sum(one != other for one, other in pairwise(files))


def main() -> int:
    """Print the number of calls, of files, and of changes of file, for each request."""
    parser = Parser(prog="python -m benchmarks.ways", description=__doc__)
    parser.add_argument("--files", action="store_true", help="also print the files, in order of their first call")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Recorder() as recorder:
        found = asyncio.run(ways(Path(folder), recorder))
    for name, files in found.items():
        print(f"{name}: {len(files)} calls, {len(set(files))} files, {changes(files)} changes of file")
        if asked.files:
            for file in dict.fromkeys(files):
                print(f"  {files.count(file):4d}  {Path(file).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
