"""Test of the whole process: text files, a trained bundle, and a server that searches with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.__main__ import main as verify_bundle
from training.cli import main as train

SENTENCES = [
    f"The {who} will {does} the {what} in the {when}."
    for who in ("man", "woman", "child", "teacher", "writer")
    for does in ("read", "see", "find", "make")
    for what in ("book", "river", "house")
    for when in ("morning", "evening")
]


@pytest.mark.filterwarnings("ignore")  # sentence-transformers' own
def test_train_export_serve_search(
    tiny_backbone: Path, tmp_path: Path, launch: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    bundle = tmp_path / "artifacts" / "mine"
    given = [
        "train", "simcse", "--backbone", str(tiny_backbone), "--corpus", str(tmp_path / "corpus.txt"),
        "--out", str(bundle), "--max-steps", "6", "--set", f"run={tmp_path / 'run'}", "--set", "eval_every=3",
        "--set", "learning_rate=0.001",
    ]  # fmt: skip
    assert train(given) == 0
    assert str(bundle) in capsys.readouterr().out
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["objective"] == "simcse"
    assert manifest["run"]["config"]["corpus"] == [str(tmp_path / "corpus.txt")]
    assert verify_bundle(["verify", str(bundle)]) == 0
    assert "golden cosine 1.000000" in capsys.readouterr().out

    server = launch("--bundle", str(bundle), engine="onnxruntime")
    info = server.client.get("/info").json()
    assert info["fingerprint"] == manifest["fingerprint"]
    assert {**info["scores"], "onnx_parity": info["parity"]} == manifest["scores"] and info["scores"]
    served = np.array(server.client.post("/embed", json={"inputs": SENTENCES}).json())
    theirs = SentenceTransformer(str(bundle), device="cpu").encode(SENTENCES)
    assert (served * theirs).sum(axis=1).min() >= 0.9999

    server.client.put("/corpora/mine").raise_for_status()
    documents = [{"id": str(i), "text": text} for i, text in enumerate(SENTENCES)]
    server.client.post("/corpora/mine/documents", json={"documents": documents}).raise_for_status()
    server.kill()
    again = launch("--bundle", str(bundle), engine="onnxruntime")
    found = again.client.post("/corpora/mine/search", json={"queries": SENTENCES[::10], "k": 1}).json()["results"]
    assert [result["hits"][0]["id"] for result in found] == [str(i) for i in range(0, len(SENTENCES), 10)]
