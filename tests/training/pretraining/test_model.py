from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from itertools import islice, pairwise, product
from pathlib import Path
from statistics import mode

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers import DataCollatorForLanguageModeling

from training.data.corpus import open_corpus
from training.encoding.attention import Dropout
from training.machine.devices import Devices
from training.pretraining import batches
from training.pretraining.batches import START, Batch, Batches, sentence_lengths
from training.pretraining.config import PretrainConfig
from training.pretraining.model import MaskedLM, MaskedTokens, build_model
from training.pretraining.run import State, Step, evaluate
from training.step import adamw

WORDS = ("man", "woman", "dog", "cat", "bird", "fish", "horse", "guitar", "river", "city")
TINY = {"layers": 2, "width": 32, "heads": 2, "max_length": 32, "batch_size": 6, "device": "cpu", "precision": "fp32"}


@pytest.fixture
def config(tiny_backbone: Path, corpus_file: Path) -> PretrainConfig:
    """Return a configuration with two layers, no dropout, and 6 sequences of 32 tokens."""
    settings = {**TINY, "tokenizer": str(tiny_backbone), "corpus": (str(corpus_file),), "dropout": 0.0}
    return PretrainConfig().override(settings)


@pytest.fixture
def model(config: PretrainConfig) -> MaskedLM:
    """Return a model whose weights are so large that its output depends on its input."""
    model = build_model(config, torch.device("cpu")).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)
    return model


def batches_of(config: PretrainConfig, model: MaskedLM) -> Batches:
    return Batches(config, model, open_corpus(config.corpus), Devices("cpu"))


def step_of(model: MaskedLM, *, clip_norm: float = 1.0) -> Step:
    state = State(model, adamw(model.parameters(), learning_rate=1, weight_decay=0))
    return Step(state, Devices("cpu"), clip_norm=clip_norm, precision=None)


def step_gradients(model: MaskedLM, batch: Batch) -> dict[str, Tensor]:
    step = step_of(model)
    return step.gradients(step.on_device(batch))


def gradients(model: MaskedLM, loss: Callable[[], Tensor]) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    return value.item(), {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


def assert_equal(ours: tuple[float, dict[str, Tensor]], theirs: tuple[float, dict[str, Tensor]]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in ours[1].items():
        torch.testing.assert_close(gradient, theirs[1][name], rtol=1e-8, atol=1e-10, msg=name)


def test_loss_and_gradient_are_those_of_transformers_on_its_own_masked_batch(
    model: MaskedLM, sentences: list[str]
) -> None:
    tokenizer = model.tokenizer
    encoded = tokenizer(sentences[:20], return_offsets_mapping=True, return_special_tokens_mask=True)
    length = mode(map(len, encoded["input_ids"]))
    rows = [
        {name: values[i] for name, values in encoded.items() if name != "token_type_ids"}
        for i in range(20)
        if len(encoded["input_ids"][i]) == length
    ]
    assert len(rows) > 2
    with warnings.catch_warnings(action="ignore"):  # Random tokens, whose words the model does not know.
        collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True, mlm_probability=0.3, seed=1)
    batch = collator(rows)
    hidden = batch["labels"].ravel() != -100
    assert hidden.sum() > 4
    questions = MaskedTokens(batch["input_ids"], hidden.nonzero().ravel(), batch["labels"].ravel()[hidden])

    ours = gradients(model, lambda: model(*questions)[0] / hidden.sum())
    model.bert.bert.set_attn_implementation("eager")
    theirs = gradients(model, lambda: model.bert(batch["input_ids"], labels=batch["labels"]).loss)
    assert_equal(ours, theirs)


def test_sentences_of_a_sequence_know_nothing_of_each_other(config: PretrainConfig, model: MaskedLM) -> None:
    """Compare loss and gradient with those of transformers' model for each sentence alone."""
    batch = next(batches_of(config, model).after(0, START))
    (questions,) = batch.chunks
    labels = torch.full((questions.ids.numel(),), -100)
    labels[questions.places] = questions.labels
    lengths = sentence_lengths(questions.ids.numpy(), model.vocabulary.cls)
    assert len(lengths) > 2 * len(questions.ids), "several to a sequence"
    assert (questions.ids[:, 0] != model.vocabulary.cls).any(), "and some begin in the middle of a sentence"
    ends = np.cumsum([0, *lengths]).tolist()

    def alone() -> Tensor:
        losses = []
        for start, end in pairwise(ends):
            output = model.bert(questions.ids.ravel()[None, start:end])
            losses.append(torch.nn.functional.cross_entropy(output.logits[0], labels[start:end], reduction="sum"))
        return torch.stack(losses).sum()

    ours = gradients(model, lambda: model(*questions)[0])
    model.bert.bert.set_attn_implementation("eager")
    assert_equal(ours, gradients(model, alone))


def test_a_sentence_that_speaks_of_cls_stays_one(config: PretrainConfig, model: MaskedLM, tmp_path: Path) -> None:
    file = tmp_path / "special.txt"
    file.write_text("".join(f"the [CLS] {word} of a [CLS]\n" for word in ("cat", "dog", "bird", "fish")))
    changed = config.override({"corpus": (str(file),), "batch_size": 1, "max_length": 32})
    batch = next(Batches(changed, model, open_corpus(changed.corpus, held_out=0), Devices("cpu")).after(0, START))
    assert list(batch.lengths) == [8, 8, 8, 8]


def test_a_batch_in_chunks_has_the_loss_and_the_gradient_of_the_whole(config: PretrainConfig, model: MaskedLM) -> None:
    found = []
    for size in (None, 1, 4):
        changed = config.override({"chunk_size": size})
        batch: Batch = next(batches_of(changed, model).after(0, START))
        assert len(batch.chunks) == {None: 1, 1: 6, 4: 2}[size]
        model.zero_grad()
        values = step_gradients(model, batch)
        assert values["loss"] == pytest.approx(evaluate(model, batch.chunks, None)["masked_loss"], rel=1e-6)
        assert values["accuracy"] == pytest.approx(evaluate(model, batch.chunks, None)["masked_accuracy"], rel=1e-6)
        found.append({name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None})
    for other in found[1:]:
        for name, gradient in other.items():
            torch.testing.assert_close(gradient, found[0][name], rtol=1e-8, atol=1e-12, msg=name)


def test_questions_without_an_answer_change_nothing(
    config: PretrainConfig, model: MaskedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pad the masked tokens, as on CUDA."""
    found = []
    for granule in (1, 64):
        monkeypatch.setattr(batches, "GRANULE", {"cpu": granule})
        batch = next(batches_of(config, model).after(0, START))
        (chunk,) = batch.chunks
        assert len(chunk.labels) % granule == 0 and chunk.answered == batch.hidden
        model.zero_grad()
        values = {name: value.item() for name, value in step_gradients(model, batch).items()}
        grads = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
        found.append((len(chunk.labels), values, evaluate(model, batches_of(config, model).held_out(), None), grads))
    (few, values, scores, grads), (more, same, same_scores, same_grads) = found
    assert few < more
    assert values == pytest.approx(same, rel=1e-6) and scores == pytest.approx(same_scores, rel=1e-12)
    for name, gradient in grads.items():
        torch.testing.assert_close(same_grads[name], gradient, rtol=1e-10, atol=1e-14, msg=name)


def test_what_is_copied_to_be_recorded_is_put_back_in_its_place(config: PretrainConfig, model: MaskedLM) -> None:
    batch = next(batches_of(config.override({"chunk_size": 4}), model).after(0, START))
    placed = step_of(model).on_device(batch)
    copied = tree_map_only(Tensor, Tensor.clone, placed)
    assert torch.equal(copied.hidden, placed.hidden) and placed.hidden.item() == batch.hidden
    assert len(copied.chunks) == len(placed.chunks) == 2
    for one, other in zip(placed.chunks, copied.chunks, strict=True):
        assert all(torch.equal(a, b) and a is not b for a, b in zip(one, other, strict=True))


def test_a_step_goes_as_far_as_the_learning_rate_of_the_moment(config: PretrainConfig, model: MaskedLM) -> None:
    batch, step = next(batches_of(config, model).after(0, START)), step_of(model)
    for rate in (0.0, 0.01):
        before = [weight.detach().clone() for weight in model.parameters()]
        step(batch, rate)
        furthest = max((now - then).abs().max().item() for now, then in zip(model.parameters(), before, strict=True))
        assert furthest == pytest.approx(rate, rel=1e-3), "as Adam's does while the gradient stays the same"


def test_a_gradient_is_no_longer_than_the_norm_to_clip_at(config: PretrainConfig, model: MaskedLM) -> None:
    batch = next(batches_of(config, model).after(0, START))
    found = {}
    for clip_norm in (1e-3, 1e6):
        values = step_of(model, clip_norm=clip_norm)(batch, 0.0)
        left = torch.nn.utils.get_total_norm([w.grad for w in model.parameters() if w.grad is not None])
        found[clip_norm] = (values["gradient_norm"].item(), left.item())
    whole = found[1e6][1]
    assert whole > 1e-3, "so that there is something to clip"
    assert found[1e6] == pytest.approx((whole, whole))
    assert found[1e-3] == pytest.approx((whole, 1e-3), rel=1e-3)


@pytest.fixture
def even(config: PretrainConfig, tmp_path: Path) -> PretrainConfig:
    """Return a corpus of sentences with [CLS], two words of one token and [SEP], so that all batches have one shape."""
    file = tmp_path / "even.txt"
    file.write_text("".join(f"{one} {other}\n" for one, other in product(WORDS, repeat=2)))
    return config.override({"corpus": (str(file),)})


def test_what_is_hidden_depends_on_the_seed_and_the_step(even: PretrainConfig, model: MaskedLM) -> None:
    def places(seed: int) -> list[list[int]]:
        batches = islice(batches_of(even.override({"seed": seed}), model).after(0, START), 2)
        return [batch.chunks[0].places.tolist() for batch in batches]

    first, second = places(1)
    assert places(1) == [first, second]
    assert first != second
    assert first != places(2)[0]


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_the_share_of_the_run_is_hidden(share: float, even: PretrainConfig, model: MaskedLM) -> None:
    changed = even.override({"share": share})
    batch = next(batches_of(changed, model).after(0, START))
    words = changed.batch_size * changed.max_length // 2
    assert batch.hidden == sum(len(chunk.labels) for chunk in batch.chunks) == round(share * words)


def test_the_dropout_of_the_run_is_the_models_and_is_off_while_it_is_judged(config: PretrainConfig) -> None:
    model = build_model(config.override({"dropout": 0.3}), torch.device("cpu"))
    architecture = model.bert.config
    assert (architecture.hidden_dropout_prob, architecture.attention_probs_dropout_prob) == (0.3, 0.3)
    held_out = batches_of(config, model).held_out()
    model.train()
    first, again = (evaluate(model, held_out, None) for _ in range(2))
    assert first == again
    assert model.training
    loss, other = (model(*held_out[0])[0].item() for _ in range(2))
    assert loss != other, "as it is while training"


def test_what_is_held_out_is_asked_whole_and_the_same_whatever_the_seed(
    config: PretrainConfig, model: MaskedLM
) -> None:
    corpus = open_corpus(config.corpus)
    tokens = sum(len(model.tokenizer(each)["input_ids"]) for each in corpus.census.held_out)
    found = [batches_of(config.override({"seed": seed}), model).held_out() for seed in (1, 2)]
    assert sum(each.ids.numel() for each in found[0]) == tokens and tokens % config.max_length
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_tokenizer_with_gaps_in_its_ids_is_learnt_from(
    config: PretrainConfig, tiny_backbone: Path, tmp_path: Path
) -> None:
    """Move the ids of all words up by ten. The model has ten more rows, and its task is the same."""
    folder = Path(shutil.copytree(tiny_backbone, tmp_path / "gaps"))
    content = json.loads((folder / "tokenizer.json").read_text())
    first_word = 5
    ids = content["model"]["vocab"]
    ids.update({name: i + 10 for name, i in ids.items() if i >= first_word})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    plain, moved = (
        build_model(config.override({"tokenizer": str(each)}), torch.device("cpu")) for each in (tiny_backbone, folder)
    )
    assert moved.bert.config.vocab_size == plain.bert.config.vocab_size + 10
    (expected,), (questions,) = (next(batches_of(config, model).after(0, START)).chunks for model in (plain, moved))
    assert torch.equal(questions.places, expected.places)
    assert torch.equal(questions.labels, expected.labels + 10)
    assert torch.isfinite(moved(*questions)[0])


def test_what_makes_a_cpu_quick_is_left_out_elsewhere(config: PretrainConfig) -> None:
    """Check that CPU dropout is not used on other devices, where it would fail in the first step."""
    here, there = (build_model(config, torch.device(name)) for name in ("cpu", "meta"))
    assert {weight.device.type for weight in there.parameters()} == {"meta"}
    for model, quick in ((here, True), (there, False)):
        assert any(isinstance(each, Dropout) for each in model.modules()) is quick
        words = model.encoder.backbone.get_input_embeddings()
        assert isinstance(words, nn.Embedding) and words.sparse is quick


def test_norms_and_biases_do_not_decay(config: PretrainConfig, model: MaskedLM) -> None:
    decaying, others = adamw(model.parameters(), learning_rate=1, weight_decay=0.5).param_groups
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.5, 0)
    assert {id(w) for group in (decaying, others) for w in group["params"]} == set(names)
    assert all(names[id(w)].endswith(".weight") and "LayerNorm" not in names[id(w)] for w in decaying["params"])
    assert all("LayerNorm" in names[id(w)] or names[id(w)].endswith("bias") for w in others["params"])


def test_the_work_of_a_token_counts_the_head_at_its_share(config: PretrainConfig, model: MaskedLM) -> None:
    width, size = 32, len(model.tokenizer)
    body, head = 2 * 12 * width**2, width**2 + width * size
    assert model.work(0.0).weights == 2 * (4 * width**2 + 2 * width * 4 * width) == body
    assert model.work(0.5).weights == body + round(0.5 * head)
