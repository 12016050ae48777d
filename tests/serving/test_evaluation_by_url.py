from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from models.bundle import load
from models.graph import Graph
from training.evaluation import retrieval
from training.evaluation.beir import Collection
from training.evaluation.subjects import subject

WORDS = "cat dog bird fish horse river sea sky sun moon star rain snow wind fire water tree flower".split()
TEXTS = [f"the {a} and the {b}" for a in WORDS for b in WORDS]
COLLECTION = Collection(
    {f"d{i}": text for i, text in enumerate(TEXTS)},
    {"d0": TEXTS[0], "q": "a bird can sing", "r": "the moon will sleep"},
    {"d0": {"d1": 1}, "q": {"d40": 1}, "r": {"d9": 2}},
)


def test_a_server_is_judged_as_its_bundle_is(launch: Callable[..., Any], tiny_bundle: Path) -> None:
    running = launch("--bundle", str(tiny_bundle), engine="onnxruntime")
    graph = Graph(load(tiny_bundle))
    served = subject(running.address, key=None)
    assert served.facts["fingerprint"] == load(tiny_bundle).manifest.fingerprint
    np.testing.assert_allclose(served.encode(TEXTS), graph.encode(TEXTS), atol=1e-5)
    assert served.rankings is not None
    ours, theirs = (
        retrieval.score(rankings, COLLECTION)
        for rankings in (retrieval.rankings(graph.encode, COLLECTION), served.rankings(COLLECTION))
    )
    assert theirs == ours
    served.close()
    assert running.client.get("/corpora").json()["corpora"] == []
