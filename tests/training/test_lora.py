"""Tests of runs with `adapter_rank`: they train only the adapter, for every objective, and merge it at the end."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.bundle import bundle
from models.bundle.sources import SourceError, manifest_of
from models.encoder.encoder import Encoder
from tests.conftest import soon
from tests.models.test_families import FAMILIES, TEXTS, Family
from tests.training.shaken import shaken
from tests.training.test_checkpoint import assert_same_end
from tests.training.test_replay import Fragile
from tests.training.test_step import Waits, narrow, started
from training import cli, loop, run
from training.checkpoints.checkpoint import CHECKPOINT, CheckpointError
from training.checkpoints.publish import Outcome, publish
from training.config import ConfigError, RunConfig, from_preset
from training.encoding import lora
from training.evaluation import vectors
from training.loop import DivergedError
from training.objectives import OBJECTIVES
from training.run import replay
from training.step import Step

Fit = Callable[..., tuple[Outcome, str]]
MakeConfig = Callable[..., RunConfig]
RANK = 4

every_objective = pytest.mark.parametrize("objective", soon(OBJECTIVES, "simcse"))
of_transformers = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
"""Filter for a warning, because `peft` uses a deprecated name of transformers 5."""


@pytest.fixture
def adapted(make_config: MakeConfig, other_bundle: Path) -> Callable[..., RunConfig]:
    """Return a function that makes a run which trains an adapter."""

    def configured(objective: str = "simcse", name: str = "one", **changes: Any) -> RunConfig:
        config = make_config(name, **{"adapter_rank": RANK, "learning_rate": 1e-3, **changes})
        params = narrow(objective)
        needs = OBJECTIVES[objective].build(params, 32).needs
        return replace(config, objective=objective, params=params, teacher=str(other_bundle) if needs.teacher else None)

    return configured


def state(encoder: Encoder) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in encoder.state_dict().items()}


def assert_only_the_adapter_was_added(outcome: Outcome, config: RunConfig) -> None:
    """Check that the weights are the backbone's plus s B A in its linear layers."""
    assert outcome.adapter is not None
    before, after = state(Encoder.load(config.backbone)), state(outcome.encoder)
    assert after.keys() == before.keys()
    tensors = outcome.adapter.tensors
    for name, weight in before.items():
        layer = name.removeprefix("backbone.").removesuffix(".weight")
        expected = weight.numpy()
        if (a := tensors.get(f"base_model.model.{layer}.lora_A.weight")) is not None:
            b = tensors[f"base_model.model.{layer}.lora_B.weight"]
            assert a.shape[0] == b.shape[1] == config.adapter_rank
            expected = (expected + lora.ALPHA / RANK * (b.astype(np.float64) @ a.astype(np.float64))).astype(np.float32)
        np.testing.assert_array_equal(after[name].numpy(), expected, err_msg=name)


@every_objective
def test_only_the_adapter_changes_and_the_files_hold_nothing_else(
    objective: str, adapted: Callable[..., RunConfig], fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = count(1.0)  # The last weights are the best.
    monkeypatch.setattr(vectors, "reciprocal_ranks", lambda *_: np.array([next(scores)]))
    config = adapted(objective)
    outcome, _ = fitted(config)
    assert outcome.best.step == 14
    assert_only_the_adapter_was_added(outcome, config)
    folder = Path(config.run)
    kept, (best,) = load_file(folder / CHECKPOINT), folder.glob("best-*.safetensors")
    weights = {name for name in kept if name.startswith("encoder.")}
    assert len(weights) == 2 * 12 and all(".lora_" in name for name in weights)
    assert {f"encoder.{name}" for name in load_file(best)} == weights
    moments = [tensor for name, tensor in kept.items() if name.endswith(".exp_avg")]
    assert len(moments) == len(weights) + sum(name.endswith("weight") for name in kept if "objective" in name) * 2
    changed = [load_file(best)[name] for name in load_file(best) if "lora_B" in name]
    assert all(bool(b.any()) for b in changed)


@every_objective
def test_a_run_that_goes_on_ends_as_one_that_was_not_stopped(
    objective: str, adapted: Callable[..., RunConfig], fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = adapted(objective, "whole"), adapted(objective, "cut")
    outcome, _ = fitted(whole)
    stop_at(8, cut, fitted, monkeypatch)
    assert state(run.finish(cut, io.StringIO()).encoder).keys() == state(outcome.encoder).keys()
    again, said = fitted(cut, resume=True)
    assert "from step 5" in said
    assert_same_end(whole, cut)
    assert all(torch.equal(x, state(again.encoder)[name]) for name, x in state(outcome.encoder).items())


def stop_at(step: int, config: RunConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the process of a run abruptly at a step."""
    take = Step.__call__
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Step, "__call__", lambda self, *rest: 1 / 0 if self._state.step == step else take(self, *rest))
        fitted(config)


@every_objective
def test_finish_leaves_what_the_run_would_have_left(
    objective: str, adapted: Callable[..., RunConfig], fitted: Fit
) -> None:
    config = adapted(objective)
    outcome, _ = fitted(config)
    finished = run.finish(config, io.StringIO())
    assert_only_the_adapter_was_added(finished, config)
    assert all(torch.equal(x, state(finished.encoder)[name]) for name, x in state(outcome.encoder).items())


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_size": 4},
        {"augmentation": "token-cutoff"},
        pytest.param({"precision": "bf16"}, marks=pytest.mark.slow),
        {"weight_decay": 0.1, "clip_norm": 0.1},
        {"pooling": "first_last"},
    ],
    ids=str,
)
def test_other_settings_go_with_it(changes: dict[str, Any], adapted: Callable[..., RunConfig], fitted: Fit) -> None:
    config = adapted(max_steps=4, eval_every=2, **changes)
    outcome, _ = fitted(config)
    assert_only_the_adapter_was_added(outcome, config)


@pytest.mark.slow
def test_chunks_have_the_gradient_of_the_whole_batch(adapted: Callable[..., RunConfig], fitted: Fit) -> None:
    plain = {"dropout": 0.0, "augmentation": "span-cutoff", "augmentation_rate": 0.0}
    outcomes = [
        fitted(adapted(name=str(size), chunk_size=size, max_steps=3, eval_every=3, **plain))[0].adapter
        for size in (None, 4)
    ]
    whole, chunked = (outcome.tensors for outcome in outcomes if outcome is not None)
    for name, tensor in whole.items():
        np.testing.assert_allclose(chunked[name], tensor, atol=1e-4, err_msg=name)


def test_a_step_waits_for_nothing(adapted: Callable[..., RunConfig], sentences: list[str]) -> None:
    """Check that a step waits for nothing, so that a GPU can record it."""
    _, step, tokenise = started(adapted(precision="bf16"))
    batch = tokenise(sentences[:8])
    step(batch, 1e-3)  # The optimiser creates its moments in this step.
    with Waits() as waits:
        step(batch, 1e-3)
    assert waits.seen == []


def test_the_seed_draws_the_adapter(adapted: Callable[..., RunConfig], fitted: Fit) -> None:
    configs = [adapted(name=name, seed=seed, max_steps=1) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    first, again, other = (fitted(config)[0].adapter for config in configs)
    assert first is not None and again is not None and other is not None
    same = [np.array_equal(tensor, again.tensors[name]) for name, tensor in first.tensors.items()]
    different = [np.array_equal(tensor, other.tensors[name]) for name, tensor in first.tensors.items() if "_A." in name]
    assert all(same) and not any(different)


def test_a_run_that_no_step_improved_leaves_the_backbone_as_it_was(
    adapted: Callable[..., RunConfig], fitted: Fit
) -> None:
    config = adapted(learning_rate=1e-30, max_steps=2)
    outcome, _ = fitted(config)
    assert outcome.best.step == 0
    before = state(Encoder.load(config.backbone))
    assert all(torch.equal(x, before[name]) for name, x in state(outcome.encoder).items())


def test_a_checkpoint_is_of_one_backbone(
    adapted: Callable[..., RunConfig], fitted: Fit, tiny_backbone: Path, tmp_path: Path
) -> None:
    backbone = tmp_path / "backbone"
    shutil.copytree(tiny_backbone, backbone)
    config = adapted(backbone=str(backbone), max_steps=5)
    fitted(config)
    shaken(backbone, 3).save(backbone)
    for again in (lambda: fitted(config, resume=True), lambda: run.finish(config, io.StringIO())):
        with pytest.raises(CheckpointError, match=r"\.safetensors: the backbone has changed since"):
            again()


def test_a_step_that_diverged_is_taken_again(
    adapted: Callable[..., RunConfig], fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, "fragile", replace(OBJECTIVES["simcse"], build=Fragile))
    config = replace(adapted(), objective="fragile")
    with pytest.raises(DivergedError) as caught:
        fitted(config)
    file = loop.last_divergence(Path(config.run))
    step, values, _ = replay(config, file)
    assert f"step {step}: plain {values['plain']}, drawn nan" in str(caught.value)
    assert all(".lora_" in name for name in load_file(file) if name.startswith("encoder."))


@pytest.mark.slow
@of_transformers
def test_the_bundle_is_promoted_and_the_adapter_is_beside_the_record(
    adapted: Callable[..., RunConfig], fitted: Fit, corpus_file: Path, sentences: list[str], tmp_path: Path
) -> None:
    config = adapted()
    outcome, _ = fitted(config)
    made = publish(config, outcome, {})
    assert made.manifest.run is not None and made.manifest.run["config"]["adapter_rank"] == RANK
    vectors = outcome.encoder.encode(sentences[:5])
    np.testing.assert_allclose(Encoder.load(config.out).encode(sentences[:5]), vectors, atol=1e-6)
    folder = Path(config.run) / "adapter"
    by_peft = pooled_by_peft(config.backbone, folder, outcome.encoder, sentences[:5])
    np.testing.assert_allclose(by_peft, vectors, atol=1e-5)
    np.testing.assert_array_equal(Encoder.load(folder).encode(sentences[:5]), vectors)
    said = manifest_of(str(folder))
    assert said is not None and said.run is not None and said.run["best_step"] == outcome.best.step
    assert said.fingerprint == made.manifest.fingerprint
    default = tmp_path / "artifacts" / "default"
    assert cli.main(["promote", config.out, "--default", str(default), "--corpus", str(corpus_file)]) == 0
    assert bundle.load(default).manifest.fingerprint == made.manifest.fingerprint
    assert cli.main(["finish", config.run, "--out", str(tmp_path / "artifacts" / "again")]) == 0
    assert bundle.load(tmp_path / "artifacts" / "again").manifest.fingerprint == made.manifest.fingerprint


@pytest.fixture(scope="module", params=soon(FAMILIES, "Bert", called=lambda family: family.name))
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family: Family = request.param
    folder = tmp_path_factory.mktemp("family")
    family.write(folder)
    return folder


def pooled_by_peft(source: str, folder: Path, encoder: Encoder, texts: list[str]) -> Any:
    """Return the vectors that `peft` computes with the adapter in `folder` and our pooling."""
    base = Encoder.load(source).backbone
    model = peft.PeftModel.from_pretrained(base, folder).eval()
    ids, mask = encoder.tensors(encoder.tokenizer.encode(texts))
    with torch.inference_mode():
        hidden = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        return encoder.pooled([hidden[-1]], mask).numpy()


@of_transformers
def test_the_merged_encoder_gives_the_vectors_of_peft(backbone: Path, tmp_path: Path) -> None:
    plain, encoder = (Encoder.load(backbone, pooling="cls").eval() for _ in range(2))
    lora.attach_adapter(encoder, RANK, backbone=str(backbone))
    np.testing.assert_array_equal(encoder.encode(TEXTS), plain.encode(TEXTS))
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            assert weight.requires_grad == (".lora_" in name)
            if "lora_B" in name:
                weight.normal_(std=0.002)  # The weights change by ALPHA / RANK times as much.
    vectors = encoder.encode(TEXTS)
    adapter = lora.merge_adapter(encoder)
    assert adapter is not None and lora.merge_adapter(encoder) is None
    assert state(encoder).keys() == state(plain).keys() and not hasattr(encoder.backbone, "peft_config")
    merged = encoder.encode(TEXTS)
    np.testing.assert_allclose(merged, vectors, atol=1e-5)
    assert np.abs(merged - plain.encode(TEXTS)).max() > 0.1
    described = lora.write_adapter(adapter, encoder, tmp_path).config
    assert (described["base_model_name_or_path"], described["r"]) == (str(backbone), RANK)
    loaded = state(Encoder.load(tmp_path))
    assert all(torch.equal(x, loaded[name]) for name, x in state(encoder).items())
    np.testing.assert_allclose(pooled_by_peft(str(backbone), tmp_path, encoder, TEXTS), merged, atol=1e-5)


def test_a_backbone_that_is_an_adapter_is_refused(
    backbone: Path, make_config: MakeConfig, fitted: Fit, tmp_path: Path
) -> None:
    encoder = Encoder.load(backbone)
    lora.attach_adapter(encoder, RANK, backbone=str(backbone))
    adapter = lora.merge_adapter(encoder)
    assert adapter is not None
    lora.write_adapter(adapter, encoder, tmp_path)
    with pytest.raises(SourceError, match="is an adapter, but whole weights are needed"):
        fitted(make_config(adapter_rank=RANK, backbone=str(tmp_path)))


def test_minilm_is_called_by_its_name_on_the_hub() -> None:
    encoder = Encoder.load("minilm")
    lora.attach_adapter(encoder, 1, backbone="minilm")
    adapter = lora.merge_adapter(encoder)
    assert adapter is not None
    assert adapter.config["base_model_name_or_path"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert len(adapter.tensors) == 2 * 6 * 6 and not any("pooler" in name for name in adapter.tensors)


@pytest.mark.parametrize(
    ("rank", "message"),
    [(0, "adapter_rank: 0 is not above 0"), (33, r"adapter_rank: 33 is more than 32, the width of encoder\.layer\.0")],
)
def test_a_rank_that_does_not_fit_is_refused_before_the_run_has_a_folder(
    rank: int, message: str, make_config: MakeConfig, fitted: Fit, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fitted(make_config(adapter_rank=rank))
    assert not (tmp_path / "runs").exists()


def test_without_peft_the_error_says_how_to_install_it(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"^adapter_rank: peft is not installed; `make train` installs it$"):
        fitted(make_config(adapter_rank=RANK))


def test_a_backbone_without_linear_layers_is_refused(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone)
    encoder.backbone.set_submodule("encoder.layer", torch.nn.ModuleList())
    with pytest.raises(ConfigError, match=r"adapter_rank: .* has no linear layers"):
        lora.attach_adapter(encoder, RANK, backbone=str(tiny_backbone))


@pytest.mark.parametrize("command", [["pretrain"], ["postprocess", "whitening", "minilm", "--out", "artifacts/x"]])
def test_commands_that_train_no_adapter_refuse_the_setting(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--set", "adapter_rank=8"]) == 2
    assert "'adapter_rank' is none of" in capsys.readouterr().err


def test_a_run_is_described_as_before_unless_it_has_an_adapter() -> None:
    config = from_preset("simcse")
    assert "adapter_rank" not in config.to_json()
    assert RunConfig.from_json(config.to_json()) == config
    adapted = config.override(config.parse(["adapter_rank=8"]))
    assert RunConfig.from_json(adapted.to_json()) == adapted
    assert adapted.differences(config) == ["adapter_rank (8, None)"]
