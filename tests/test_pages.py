"""Tests that follow the pages like a reader: their blocks are run one after another, in one folder.

A block that can't be run here has a comment before it, `<!-- not run: REASON -->`. `RUN` names the test that runs the
other blocks of a page.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.conftest import PATIENCE
from tests.pages import PAGES, ROOT, Block, blocks

RUN = {
    "README.md": "tests/serving/test_printed_requests.py",
    "docs/clients.md": "tests/clients/test_docs.py",
    "docs/corpora.md": "tests/serving/test_printed_requests.py",
    "docs/files.md": "tests/test_pages.py",
    "docs/keys.md": "tests/test_pages.py",
    "docs/mcp.md": "tests/test_pages.py",
    "docs/python.md": "tests/test_pages.py",
    "docs/tutorials/adapt.md": "tests/test_pages.py",
    "docs/tutorials/search.md": "tests/serving/test_printed_requests.py",
    "docs/tutorials/train.md": "tests/test_pages.py",
}
COMMAND = re.compile(r"^(\.venv/bin/|python |isosphere |make |curl )", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    unnamed = [block.place for block in blocks(page, "") if COMMAND.search(block.code)]
    assert not unnamed, "commands are in blocks of sh"
    if str(page.relative_to(ROOT)) not in RUN:
        assert not [block.place for block in blocks(page, "sh", "python") if not block.reason]


@dataclass
class Reader:
    """A reader with a terminal. `instead` has the reader's own words for placeholders of the page."""

    folder: Path
    instead: dict[str, str] = field(default_factory=dict)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, page: str, *, first: int = 0, last: int | None = None) -> list[str]:
        """Run the blocks of a page, or some of them, and return the output of each."""
        runnable = [block for block in blocks(ROOT / page, "sh", "python") if not block.reason]
        return [self.run(block) for block in runnable[first:last]]

    def run(self, block: Block) -> str:
        code = block.code.replace(".venv/bin/isosphere", "isosphere")
        for words, others in self.instead.items():
            code = code.replace(words, others)
        if block.language == "python":
            return self._printed([sys.executable, "-c", code], block)
        if code.startswith("isosphere serve"):
            self._serve(shlex.split(code, comments=True)[1:])
            return ""
        return self._printed(["bash", "-euc", f'isosphere() {{ {sys.executable} -m isosphere "$@"; }}\n{code}'], block)

    def _printed(self, command: list[str], block: Block) -> str:
        ran = subprocess.run(
            command, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=5 * PATIENCE
        )
        assert ran.returncode == 0, (block.place, ran.stdout, ran.stderr)
        return ran.stdout

    def _serve(self, arguments: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{(port := probe.getsockname()[1])}"
        command = [sys.executable, "-m", "isosphere", *arguments, "--port", str(port)]
        server = subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        self.servers.append(server)
        self.instead["http://127.0.0.1:8080"] = address
        deadline = time.monotonic() + PATIENCE
        while not _is_ready(address):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "ISOSPHERE_ENGINE": "onnxruntime",
    "ISOSPHERE_PRECISION": "fp32",
    "ISOSPHERE_NO_DEMO": "true",
}


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    for server in reader.servers:
        server.terminate()
    for server in reader.servers:
        server.wait(PATIENCE)


@pytest.mark.slow
def test_the_page_about_keys(reader: Reader, tiny_bundle: Path) -> None:
    reader.instead = {"isosphere serve": f"isosphere serve --bundle {tiny_bundle}", "-second 1": "-second 0.001"}
    _, _, asked, listed, *_ = reader.follow("docs/keys.md")
    assert [line for line in asked.splitlines() if line.isdigit()] == ["200", "429", "429"]
    assert listed.startswith("app read * 0.001 requests/s")
    key = (reader.folder / "app.key").read_text().strip()
    assert _status_soon(reader, key, 401)


@pytest.mark.slow
def test_the_page_about_files(reader: Reader, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "ISOSPHERE_BUNDLE", str(tiny_bundle))
    found, exported, _, sent = reader.follow("docs/files.md")
    hit = json.loads(found)
    shown = next(json.loads(block.code) for block in blocks(ROOT / "docs/files.md", "json"))
    assert {name: hit[name] for name in ("id", "text")} == {name: shown[name] for name in ("id", "text")}
    watched = hit["metadata"].pop("watched")
    assert hit["metadata"] == shown["metadata"] and watched["file"] == "notes/guides/install.md"
    (left,) = map(json.loads, exported.splitlines())
    assert left["text"].endswith("twice.")
    assert sent.endswith('"count":4}')


def _status_soon(reader: Reader, key: str, status: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        address = reader.instead["http://127.0.0.1:8080"]
        answer = httpx.get(f"{address}/info", headers={"authorization": f"Bearer {key}"}, trust_env=False)
        if answer.status_code == status:
            return True
        time.sleep(0.2)
    return False


@pytest.mark.slow
def test_the_page_about_assistants(reader: Reader, tiny_bundle: Path) -> None:
    ours = f'command="{sys.executable}", env={{"PYTHONPATH": "{ROOT}"}}, args=["-m", "isosphere", '
    reader.instead = {
        "isosphere serve": f"isosphere serve --bundle {tiny_bundle}",
        'command="isosphere", args=[': ours,
    }
    *_, printed = reader.follow("docs/mcp.md")
    (expected,) = [block.code for block in blocks(ROOT / "docs/mcp.md", "text")]
    assert printed.strip() == expected.strip()


@pytest.mark.slow
def test_the_page_about_python(reader: Reader, tiny_bundle: Path) -> None:
    reader.instead = {
        'load("default")': f'load("{tiny_bundle}")',
        "isosphere embed": f"isosphere embed --model {tiny_bundle}",
    }
    (reader.folder / "notes.txt").write_text("A man plays the guitar.\nRates rose.\n")
    for name in ("articles", "more"):
        (reader.folder / name).mkdir()
        (reader.folder / name / "one.jsonl").write_text('{"title": "Music", "year": 2021, "body": "She sings."}\n')
    reader.follow("docs/python.md")
    assert np.load(reader.folder / "notes.npy").shape == (2, 32)
    assert (reader.folder / "articles.parquet").stat().st_size


@pytest.mark.nightly
def test_the_tutorial_about_training(reader: Reader, tiny_bundle: Path) -> None:
    tiny = f"--backbone {tiny_bundle} --corpus data/retrieval/python-docs/corpus.jsonl --set batch_size=4"
    reader.instead = {
        "evaluate minilm": f"evaluate {tiny_bundle}",
        "train simcse --max-steps 30": f"train simcse --max-steps 2 {tiny}",
    }
    reader.follow("docs/tutorials/train.md", last=1)
    _keep(200, reader.folder / "data/retrieval/python-docs")
    *_, judged, _, _, similar = reader.follow("docs/tutorials/train.md", first=1)
    assert "python-docs" in judged and (reader.folder / "first.html").stat().st_size
    assert (reader.folder / "artifacts/default/manifest.json").is_file()
    assert len(json.loads(similar)) == 2


def _keep(documents: int, collection: Path) -> None:
    """Keep the first documents of a collection, and the queries for which they are relevant."""
    corpus, queries, relevant = (collection / name for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"))
    kept = corpus.read_text().splitlines()[:documents]
    ids = {json.loads(line)["_id"] for line in kept}
    header, *rows = relevant.read_text().splitlines()
    pairs = [row for row in rows if row.split("\t")[1] in ids]
    asked = {row.split("\t")[0] for row in pairs}
    texts = [line for line in queries.read_text().splitlines() if json.loads(line)["_id"] in asked]
    for file, lines in ((corpus, kept), (queries, texts), (relevant, [header, *pairs])):
        file.write_text("\n".join(lines) + "\n")


@pytest.mark.nightly
def test_the_tutorial_about_adapting(reader: Reader, tiny_bundle: Path) -> None:
    """Use the repository's pages as documents, as in the tutorial, and adapt a tiny encoder."""
    (reader.folder / "docs").symlink_to(ROOT / "docs")
    reader.instead = {"--max-steps 30": f"--max-steps 2 --backbone {tiny_bundle}"}
    *_, found = reader.follow("docs/tutorials/adapt.md")
    assert (reader.folder / "artifacts/default/manifest.json").is_file()
    assert len(json.loads(found)["hits"]) == 1


NUMBER = re.compile(r"-?\d+\.\d*")


@pytest.mark.slow
def test_the_notebook_prints_the_output_that_it_shows(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "docs/tutorials/notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    program = "\n".join("".join(cell["source"]) for cell in code)
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    shown = "".join("".join(cell["outputs"][0]["text"]) for cell in code)
    assert NUMBER.sub("", ran.stdout) == NUMBER.sub("", shown)
    printed = [float(number) for number in NUMBER.findall(ran.stdout)]
    assert printed == pytest.approx([float(number) for number in NUMBER.findall(shown)], abs=0.02)
