from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.__main__ import main as export
from models.bundle.bundle import load
from models.runtimes.graph import Graph
from training.cli import main
from training.evaluation import retrieval
from training.evaluation.beir import Collection
from training.evaluation.subjects import open_subject

WORDS = "cat dog bird fish horse river sea sky sun moon star rain snow wind fire water tree flower".split()
TEXTS = [f"the {a} and the {b}" for a in WORDS for b in WORDS]
COLLECTION = Collection(
    {f"d{i}": text for i, text in enumerate(TEXTS)},
    {"d0": TEXTS[0], "q": "a bird can sing", "r": "the moon will sleep"},
    {"d0": {"d1": 1}, "q": {"d40": 1}, "r": {"d9": 2}},
)


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [(), ("query=who says that ", "document=it is known that ")])
def test_a_server_is_judged_as_its_bundle_is(
    launch: Callable[..., Any], tiny_bundle: Path, tmp_path: Path, prompts: Sequence[str]
) -> None:
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    assert export(["export", str(tiny_bundle), "--out", str(tmp_path / "one"), "--no-measure", *given]) == 0
    running = launch("--bundle", str(tmp_path / "one"), engine="onnxruntime")
    bundled, served = open_subject(str(tmp_path / "one"), key=None), open_subject(running.address, key=None)
    assert served.facts["fingerprint"] == bundled.facts["fingerprint"]
    np.testing.assert_allclose(served.encode(TEXTS), bundled.encode(TEXTS), atol=1e-5)
    assert served.rankings is not None
    ours = retrieval.rankings(bundled.encode, COLLECTION, prompts=bundled.prompts)
    assert retrieval.score(served.rankings(COLLECTION), COLLECTION) == retrieval.score(ours, COLLECTION)
    bare = retrieval.rankings(bundled.encode, COLLECTION)
    assert (bare != ours) == bool(prompts), "they tell"
    served.close()
    assert running.client.get("/corpora").json()["corpora"] == []


@pytest.mark.slow
def test_empty_texts_are_judged_by_url_as_by_the_graph(launch: Callable[..., Any], tiny_bundle: Path) -> None:
    running = launch("--bundle", str(tiny_bundle), engine="onnxruntime")
    served = open_subject(running.address, key=None)
    expected = Graph(load(tiny_bundle)).encode(["", "a cat"])
    np.testing.assert_allclose(served.encode(["", "a cat"]), expected, atol=1e-5)
    assert served.rankings is not None
    bare = Collection({"d": "a cat", "e": ""}, {"q": ""}, {"q": {"e": 1}})
    assert served.rankings(bare) == {"q": ["e", "d"]}
    served.close()


@pytest.mark.slow
def test_retrieval_alone_through_a_server_ends_without_a_speed(
    launch: Callable[..., Any], tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = launch("--bundle", str(tiny_bundle), engine="onnxruntime")
    collection = tmp_path / "retrieval" / "tiny"
    (collection / "qrels").mkdir(parents=True)
    (collection / "corpus.jsonl").write_text('{"_id": "d", "text": "a cat"}\n{"_id": "e", "text": "the moon"}\n')
    (collection / "queries.jsonl").write_text('{"_id": "q", "text": "a cat"}\n')
    (collection / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    written = tmp_path / "e.json"
    asked = ["evaluate", running.address, "--data", str(tmp_path), "--tasks", "retrieval"]
    assert main([*asked, "--json", str(written), "--html", str(tmp_path / "e.html")]) == 0
    found = json.loads(written.read_text())
    assert "speed" not in found and found["retrieval"]["tiny"]["ndcg10"] == 100
    assert "the server's index" in capsys.readouterr().out
