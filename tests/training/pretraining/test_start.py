"""Tests of the initial weights of pre-training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.repocard import metadata_load
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertForMaskedLM

from models.bundle.sources import SourceError
from models.encoder.encoder import Encoder
from tests.training.pretraining.runs import Capture, call, metrics
from training.pretraining.config import PretrainConfig
from training.pretraining.model import backbone_fields, build_model
from training.pretraining.run import RECORD

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"
BIAS = "encoder.layer.1.output.dense.bias"


@pytest.fixture
def going_on(tiny_backbone: Path, corpus_file: Path) -> list[str]:
    """Return the options of a run of 6 steps from `tiny_backbone` with evaluations at 0, 4 and 6."""
    settings = ["batch_size=8", "max_length=32", "precision=fp32", "device=cpu", "steps=6", "eval_every=4"]
    return [
        *("pretrain", "--corpus", str(corpus_file), "--backbone", str(tiny_backbone)),
        *(word for setting in settings for word in ("--set", setting)),
    ]


def test_the_body_is_the_backbones_and_the_dropout_the_runs(tiny_backbone: Path) -> None:
    config = PretrainConfig().override({**backbone_fields(str(tiny_backbone)), "max_length": 64, "dropout": 0.3})
    bert = build_model(config, CPU).bert
    published = load_file(tiny_backbone / WEIGHTS)
    ours = bert.bert.state_dict()
    assert published.keys() <= ours.keys()
    assert all(torch.equal(weight, ours[name]) for name, weight in published.items())
    assert bert.cls.predictions.decoder.weight is bert.bert.embeddings.word_embeddings.weight
    assert (bert.config.hidden_dropout_prob, bert.config.attention_probs_dropout_prob) == (0.3, 0.3)


def test_the_head_that_is_missing_is_drawn_by_the_seed(tiny_backbone: Path) -> None:
    config = PretrainConfig().override({**backbone_fields(str(tiny_backbone)), "max_length": 64})
    heads = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        heads.append(build_model(config, CPU).bert.cls.predictions.transform.dense.weight)
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_it_goes_on_where_another_ended(
    small: list[str], going_on: list[str], tiny_backbone: Path, capsys: Capture
) -> None:
    """Continue body and head. The first loss equals the last loss of the earlier run."""
    assert call(*small, "--out", "artifacts/first") == 0
    moved = ["artifacts/first" if word == str(tiny_backbone) else word for word in going_on]
    assert call(*moved, "--out", "artifacts/second") == 0
    assert "32 wide, 0.0 million weights of artifacts/first: 228 sentences" in capsys.readouterr().err
    ended, begun = (
        [line for line in metrics(f"runs/{name}") if line["kind"] == "evaluation"] for name in ("first", "second")
    )
    assert begun[0] == {**ended[-1], "step": 0}
    assert begun[-1]["masked_loss"] < begun[0]["masked_loss"]
    record = json.loads(Path("artifacts/second", RECORD).read_text())["config"]
    assert (record["backbone"], record["tokenizer"]) == ("artifacts/first", "artifacts/first")
    assert (record["layers"], record["width"], record["heads"]) == (1, 32, 2)
    assert "pre-trained from the weights of artifacts/first\n" in Path("artifacts/second/README.md").read_text()


def test_what_it_leaves_reads_texts_as_long_as_the_backbone_did(going_on: list[str], tiny_backbone: Path) -> None:
    """Limit a sequence to the backbone's 64 positions, although the default of a run is 128."""
    shutil.copytree(tiny_backbone, "start")
    Path("start/sentence_bert_config.json").write_text('{"max_seq_length": 48}')
    words = ("./start" if word == str(tiny_backbone) else word for word in going_on if word != "max_length=32")
    assert call(*(word for word, following in pairwise([*words, ""]) if (word, following) != ("--set", "--set"))) == 0
    assert json.loads(Path("artifacts/mlm", RECORD).read_text())["config"]["max_length"] == 64
    assert Encoder.load("artifacts/mlm").max_length == Encoder.load("./start").max_length == 48
    before, after = (load_file(Path(folder, WEIGHTS)) for folder in ("start", "artifacts/mlm"))
    moved = {name.removeprefix("bert.") for name, weight in after.items() if name.startswith("bert.")}
    assert moved == before.keys()
    embeddings = "embeddings.word_embeddings.weight"
    assert not torch.equal(before[embeddings], after[f"bert.{embeddings}"])


@pytest.mark.slow
def test_a_run_from_a_backbone_is_resumed(going_on: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from training.pretraining.run import Step

    assert call(*going_on, "--out", "artifacts/whole") == 0
    step = Step.__call__
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Step, "__call__", lambda self, *rest: 1 / 0 if self._state.step == 5 else step(self, *rest))
        call(*going_on, "--out", "artifacts/cut")
    for again in ([], going_on[3:5]):  # The backbone is named again, but not the fields that follow from it.
        assert call("pretrain", *again, "--out", "artifacts/cut", "--resume") == 0
    assert metrics("runs/whole") == metrics("runs/cut")


def test_its_page_hands_on_what_the_backbones_says(going_on: list[str], tiny_backbone: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_backbone, tmp_path / "told"))
    cited = "```bibtex\n@misc{start, title = {Start}}\n```\n"
    (folder / "README.md").write_text(f"---\nbase_model: org/start\nlicense: mit\nlanguage: en\n---\n{cited}")
    moved = [str(folder) if word == str(tiny_backbone) else word for word in going_on]
    assert call(*moved) == 0
    assert cited in Path("artifacts/mlm/README.md").read_text()
    told = metadata_load(Path("artifacts/mlm/README.md"))
    assert told == {
        "base_model": ["org/start"],
        "language": ["en"],
        "library_name": "transformers",
        "license": "mit",
        "pipeline_tag": "fill-mask",
    }


def changed(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that changes the weights or a JSON file of a folder."""

    def apply(folder: Path) -> None:
        file = folder / name
        content = load_file(file) if name == WEIGHTS else json.loads(file.read_text())
        change(content)
        if name == WEIGHTS:
            save_file(content, file, metadata={"format": "pt"})
        else:
            file.write_text(json.dumps(content))

    return apply


def says(**values: object) -> Callable[[Path], None]:
    return changed("config.json", lambda config: config.update(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(WEIGHTS, lambda weights: weights.pop(BIAS)), f"lack 1 tensors of a BERT, e.g. bert.{BIAS}"),
        (
            changed(WEIGHTS, lambda weights: weights.update({"cls.predictions.bias": torch.zeros(211)})),
            "lack 4 tensors of a BERT, e.g. cls.predictions.transform.LayerNorm.bias",
        ),
        (
            changed(WEIGHTS, lambda weights: weights.update({"adapter.weight": torch.zeros(2)})),
            "has 1 tensors that a BERT does not have, e.g. adapter.weight",
        ),
        (says(intermediate_size=40), "but config.json says (40"),
        (says(hidden_size="32"), "hidden_size"),
        (says(model_type="mpnet"), "backbone: ./start: a mpnet; only a BERT can be trained further"),
        (says(vocab_size=100), "backbone: ./start: 100 word embeddings, but its tokenizer has"),
        (says(tie_word_embeddings=False), "its head has output embeddings or biases of its own"),
        (says(is_decoder=True), "backbone: ./start: a decoder"),
        (
            changed("tokenizer.json", lambda tokenizer: tokenizer.update(post_processor=None)),
            "adds no special tokens such as [CLS]",
        ),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"short"), "start: "),
        (lambda folder: (folder / "tokenizer.json").unlink(), "Couldn't instantiate"),
        (lambda folder: (folder / "config.json").write_text("{"), "start: "),
        (
            lambda folder: (folder / "manifest.json").write_text('{"a": 1}'),
            "not a bundle's manifest",
        ),
    ],
)
def test_a_backbone_that_can_not_be_gone_on_with_is_one_clear_line(
    change: Callable[[Path], object], message: str, tiny_backbone: Path, corpus_file: Path, capsys: Capture
) -> None:
    change(Path(shutil.copytree(tiny_backbone, "start")))
    settings = (word for setting in ("device=cpu", "steps=1", "batch_size=1") for word in ("--set", setting))
    assert call("pretrain", "--corpus", str(corpus_file), "--backbone", "./start", *settings) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "layers=4"], "layers: 4, but {0} has 2"),
        (["--set", "width=64"], "width: 64, but {0} has 32"),
        (["--set", "heads=4"], "heads: 4, but {0} has 2"),
        (["--set", "max_length=65"], "max_length: 65, but {0} has 64 positions"),
        (["--tokenizer", "minilm"], "tokenizer: minilm: leave it out, because the backbone {0} has its own"),
        (["--backbone", "./nowhere"], "nowhere: no such folder"),
        (["--backbone", ""], "no config.json, so this is not the folder of an encoder"),
        (["--out", "{0}"], "out: {0} is the backbone, which would be replaced"),
    ],
)
def test_options_that_contradict_the_backbone_are_one_clear_line(
    options: list[str], message: str, going_on: list[str], tiny_backbone: Path, capsys: Capture
) -> None:
    assert call(*going_on, *(option.format(tiny_backbone) for option in options)) == 2
    err = capsys.readouterr().err
    assert message.format(tiny_backbone) in err and err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_transform_is_not_lost_unsaid(tiny_bundle: Path, corpus_file: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    manifest = json.loads((file := folder / "manifest.json").read_text())
    file.write_text(json.dumps({**manifest, "transform": {"kind": "whitening"}}))
    assert call("pretrain", "--corpus", str(corpus_file), "--backbone", str(folder), "--set", "max_length=32") == 2
    assert f"backbone: {folder}: has a transform, which would be lost" in capsys.readouterr().err


@pytest.mark.parametrize("own", ["decoder.weight", "decoder.bias"])
def test_a_head_with_words_of_its_own_is_refused(own: str, tiny_backbone: Path, tmp_path: Path) -> None:
    """Refuse such a head, even if config.json does not mention it."""
    folder = Path(shutil.copytree(tiny_backbone, tmp_path / "published"))
    bert = BertForMaskedLM.from_pretrained(folder)
    content = {name: weight.clone() for name, weight in bert.state_dict().items()}
    content[f"cls.predictions.{own}"] += 1
    save_file(content, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(SourceError, match="output embeddings or biases of its own"):
        build_model(PretrainConfig().override(backbone_fields(str(folder))), CPU)


def test_a_published_head_is_read(tiny_backbone: Path, tmp_path: Path) -> None:
    """Read the head of a model like bert-base-uncased, whose next-sentence part is not used."""
    bert = BertForMaskedLM.from_pretrained(tiny_backbone)
    with torch.no_grad():
        bert.cls.predictions.bias.add_(1.5)
    bert.save_pretrained(tmp_path / "published")
    weights = load_file(file := tmp_path / "published" / WEIGHTS)
    save_file({**weights, "cls.seq_relationship.weight": torch.zeros(2, 32)}, file, metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_backbone / name, tmp_path / "published" / name)
    config = PretrainConfig().override({**backbone_fields(str(tmp_path / "published")), "max_length": 64})
    ours, theirs = build_model(config, CPU).bert, AutoModelForMaskedLM.from_pretrained(tmp_path / "published")
    assert torch.equal(ours.cls.predictions.bias, torch.full_like(ours.cls.predictions.bias, 1.5))
    assert all(torch.equal(weight, theirs.state_dict()[name]) for name, weight in ours.state_dict().items())
