"""Tests of the server with a small real bundle: each engine, and the choice of the engine."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.bundle import bundle
from models.bundle.bundle import Bundle, BundleError
from models.runtimes import REFERENCE, RUNTIMES, Pair, available, choice
from models.runtimes.graph import golden_cosine
from models.runtimes.measurement import Measured
from serving import settings
from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.engine import Engine, EngineError, EngineOptions
from serving.inference.engines import ENGINES
from serving.service import Service
from serving.settings import Settings, SettingsError, read_settings

TEXTS = ["a dog", "the old man and the sea", "", "a", "the " * 200, "a red bird can sing in the morning"]


@pytest.fixture(scope="module", params=["auto", *RUNTIMES])
def name(request: pytest.FixtureRequest, tiny_bundle: Path) -> str:
    named = str(request.param)
    try:
        ENGINES[named](tiny_bundle).check(EngineOptions(device="cpu"))
    except EngineError as error:
        pytest.skip(str(error))
    return named


@pytest.fixture(scope="module")
def engine(name: str, tiny_bundle: Path) -> Engine:
    return ENGINES[name](tiny_bundle).load(EngineOptions(device="cpu"))


def test_unit_vectors_that_do_not_depend_on_the_batch(engine: Engine) -> None:
    tokens = engine.tokenize(TEXTS, "right")
    together = engine.embed(tokens)
    assert np.allclose(np.linalg.norm(together.vectors, axis=1), 1, atol=1e-5)
    alone = np.concatenate([engine.embed([one]).vectors for one in tokens])
    assert (alone * together.vectors).sum(axis=1).min() >= (0.99999 if engine.precision == "fp32" else 0.9995)


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    added = {"special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
    tokenizer["added_tokens"].append({"id": rows, "content": "xyzzy", **added})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    manifest = bundle.load(tiny_bundle).manifest
    facts = {name: value for name, value in vars(manifest).items() if name not in ("files", "fingerprint")}
    bundle.write_manifest(folder, **facts)
    with pytest.raises(BundleError, match=f"the tokenizer has {rows + 1} tokens, .* table has {rows} rows"):
        ENGINES["auto"](folder)
    with pytest.raises(BundleError, match=f"the tokenizer has {rows + 1} tokens"):
        golden_cosine(bundle.load(folder))


def test_truncation(engine: Engine) -> None:
    (long,) = engine.tokenize(["the " * 200], "right")
    assert (long.length, len(long), long.truncated) == (202, 64, True)


@pytest.mark.slow
def test_the_whole_server_on_it(
    name: str, tiny_bundle: Path, tmp_path: Path, wait_until_ready: Callable[[TestClient], None]
) -> None:
    settings = Settings(data=tmp_path, no_demo=True, engine=name, device="cpu")
    service = Service(settings, ENGINES[name](tiny_bundle), local_corpora(settings, STORES["sqlite"](tmp_path)))
    with TestClient(create_app(service)) as client:
        wait_until_ready(client)
        golden = json.loads((tiny_bundle / "manifest.json").read_text())["golden"]
        served = np.array(client.post("/embed", json={"inputs": [one["text"] for one in golden]}).json())
        assert (served * [one["vector"] for one in golden]).sum(axis=1).min() >= bundle.GOLDEN_COSINE
        info = client.get("/info").json()
        assert name in ("auto", info["engine"])
        pairs = [(pair.runtime, pair.precision) for pair in available(bundle.load(tiny_bundle), EngineOptions("cpu"))]
        assert (info["engine"], info["precision"]) in pairs
        for row in info["engines"]:
            assert row["chosen"] == ((row["runtime"], row["precision"]) == (info["engine"], info["precision"]))
        ids = client.post("/v1/embeddings", json={"input": [[2, 3], [10**6]]})
        assert (ids.status_code, ids.json()["error"]["param"]) == (400, "input.1")


def test_a_precision_that_is_named_is_served(tiny_bundle: Path) -> None:
    assert ENGINES["auto"](tiny_bundle).load(EngineOptions("cpu", precision="fp32")).precision == "fp32"


def test_the_choice_is_in_the_log(
    tiny_bundle: Path,
    tmp_path: Path,
    wait_until_ready: Callable[[TestClient], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Settings(data=tmp_path, no_demo=True, engine="onnxruntime", device="cpu", precision="fp32")
    service = Service(
        settings, ENGINES["onnxruntime"](tiny_bundle), local_corpora(settings, STORES["memory"](tmp_path))
    )
    with caplog.at_level(logging.INFO, "serving"), TestClient(create_app(service)) as client:
        wait_until_ready(client)
        assert client.get("/info").json()["engines"] == [], "nothing was measured, for there was nothing to choose"
    assert "serving tiny: the untouched tiny (onnxruntime fp32)" in caplog.text


@pytest.fixture
def remembered(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """Return a bundle whose fastest pair in the cache, openvino, no longer loads."""

    def broken(*_: object) -> None:
        raise RuntimeError(f"{tiny_bundle}/onnx/model.onnx: no such instruction\nat plugin.cpp:1")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pairs = {REFERENCE.runtime: [REFERENCE], "openvino": [Pair("openvino", "fp32")]}
    monkeypatch.setattr(
        choice,
        "available",
        lambda *_, runtimes=RUNTIMES: [pair for name in runtimes for pair in pairs.get(name, [])],
    )
    monkeypatch.setitem(RUNTIMES, "openvino", type("Broken", (), {"__init__": broken, "facts": dict}))
    rows = [Measured(*REFERENCE, 10.0, 1.0, 1.0, 0.0), Measured("openvino", "fp32", 20.0, 2.0, 1.0, 0.0)]
    opened = bundle.load(tiny_bundle)
    choice.remember(opened, EngineOptions("cpu"), rows)
    return opened


def test_what_loads_no_more_is_forgotten_and_the_next_one_taken(
    remembered: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ENGINES["auto"](remembered.folder).load(EngineOptions("cpu"))
    assert Pair(engine.name, engine.precision) == engine.choice.pair == REFERENCE
    assert engine.embed(engine.tokenize(TEXTS, "right")).vectors.shape[0] == len(TEXTS)
    rows = {row["runtime"]: row for row in engine.choice.table()}
    assert rows[REFERENCE.runtime]["chosen"]
    assert rows["openvino"]["error"] == "onnx/model.onnx: no such instruction", "a line, without the bundle's folder"
    assert "openvino fp32 does not load, so onnxruntime fp32 is used" in caplog.text
    assert choice.recall(remembered, EngineOptions("cpu")) == []


def test_what_was_named_is_not_replaced(remembered: Bundle) -> None:
    with pytest.raises(RuntimeError, match="no such instruction"):
        ENGINES["openvino"](remembered.folder).load(EngineOptions("cpu"))


def test_an_altered_bundle_is_refused_by_file(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_bundle, copy)
    with (copy / "onnx" / "model.onnx").open("ab") as graph:
        graph.write(b"x")
    with pytest.raises(BundleError, match=r"model\.onnx"):
        ENGINES[name](copy)


@pytest.mark.parametrize(
    ("engine", "options", "says"),
    [
        ("onnxruntime", {"device": "cuda"}, "--engine onnxruntime .*--device cuda: .*`gpu` extra"),
        ("onnxruntime", {"precision": "bf16"}, "--engine onnxruntime --precision bf16 .*available: onnxruntime fp32"),
        ("auto", {"precision": "fp16"}, "--engine auto --precision fp16 .*available: onnxruntime fp32"),
        ("fake", {"precision": "bf16"}, "--precision bf16: the fake engine supports only fp32"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_option(
    engine: str, options: dict[str, Any], says: str, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    model = ENGINES[engine](tiny_bundle)
    for refused in (model.check, model.load):
        with pytest.raises(EngineError, match=says) as refusal:
            refused(EngineOptions(**options))
        assert "\n" not in str(refusal.value)


def test_the_options_of_the_engine() -> None:
    assert EngineOptions.of(read_settings(["--threads", "3"])) == EngineOptions("auto", 3, long_lived=True)
    assert EngineOptions.of(read_settings(["--threads", "3", "--precision", "bf16"])).precision == "bf16"
    with pytest.raises(SettingsError, match=r"^--precision: "):
        read_settings(["--precision", "int4"])


def test_the_options_name_every_engine_and_store() -> None:
    assert tuple(ENGINES) == settings.ENGINES
    assert tuple(STORES) == settings.STORES
