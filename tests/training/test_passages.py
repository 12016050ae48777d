"""Tests of training on positive pairs from passages, from the corpus to the selection of the best step."""

from __future__ import annotations

import io
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models import python_docs
from models.bundle import bundle
from models.encoder.encoder import Encoder
from training.checkpoints import record
from training.checkpoints.publish import Outcome
from training.checkpoints.record import Record
from training.cli import adapt, main, train
from training.cli.options import parse
from training.config import ConfigError, RunConfig, from_preset
from training.data.corpus import documentation_passages, open_corpus
from training.data.files import CorpusError
from training.data.positives import cloze
from training.data.sentences import word_starts
from training.evaluation import known_item, retrieval
from training.evaluation.known_item import gain
from training.evaluation.selection import by_known_items
from training.machine.devices import Devices
from training.objectives.imsimcse import ImSimCSEParams
from training.promotion.yardsticks import KNOWN_ITEMS, SelfRetrievalYardstick, choose_yardstick
from training.run import fit
from training.step import Step, initial_state, make_tokeniser

Fit = Callable[..., tuple[Outcome, str]]
RIVER, STONE = "A river is long. It ends.", "A stone is hard. It stays."
MakeConfig = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def passages(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write eighty documents of three sentences, half of them with a title."""
    file = tmp_path_factory.mktemp("passages") / "documents.jsonl"
    texts = [" ".join(sentences[place : place + 3]) for place in range(0, len(sentences), 3)]
    rows = [{"text": text, **({"title": f"Title {place}"} if place % 2 else {})} for place, text in enumerate(texts)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_a_table_gives_passages_with_their_titles(passages: Path) -> None:
    read = set(next(open_corpus([str(passages)], held_out=0, passages=True).batches(80, seed=0)))
    rows = [json.loads(line) for line in passages.read_text(encoding="utf-8").splitlines()]
    assert read == {f"{row['title']}\n{row['text']}" if "title" in row else row["text"] for row in rows}


@pytest.mark.parametrize("name", ["titled.csv", "titled.parquet"])
def test_a_title_is_read_from_any_table_and_may_be_missing(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if name.endswith("csv"):
        file.write_text(f"Title,text\nOf rivers,{RIVER}\n,{STONE}\n", encoding="utf-8")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"Title": ["Of rivers", None], "text": [RIVER, STONE]}), file)
    corpus = open_corpus([str(file)], held_out=0, passages=True)
    assert set(next(corpus.batches(2, seed=0))) == {f"Of rivers\n{RIVER}", STONE}


@pytest.mark.parametrize(("objective", "params", "views"), [("simcse", None, 2), ("imsimcse", ImSimCSEParams(), 4)])
def test_the_first_view_is_of_the_sentence_and_the_others_of_what_is_left(
    objective: str, params: ImSimCSEParams | None, views: int, make_config: MakeConfig, passages: Path
) -> None:
    """Check all views, including the two views without dropout of objectives that need them."""
    settings = {"augmentation": "cloze", "max_length": 64, "dropout": 0.0, "precision": "fp32"}
    config = make_config(corpus=(str(passages),), **settings)
    config = replace(config, objective=objective, params=params or config.params)
    devices = Devices("cpu")
    state = initial_state(config, devices, None)
    texts = next(open_corpus(config.corpus, held_out=0, passages=True).batches(6, seed=0))
    batch = make_tokeniser(config, state.encoder, None, devices)(texts, 3)
    seen: list[torch.Tensor] = []
    Step(config, state, devices, None, None).gradients(batch, on_views=seen.append)
    draw = Random(f"{config.seed}/3")
    pairs = [cloze(text, draw) for text in texts]
    sides = [state.encoder.encode(side) for side in zip(*pairs, strict=True)]
    assert seen[0].detach().numpy() == pytest.approx(np.stack(sides * (views // 2)), abs=1e-5)


def test_parts_of_a_batch_are_of_the_same_pairs(make_config: MakeConfig, passages: Path) -> None:
    """Check that gradient caching gives the gradient of the whole batch."""
    whole = make_config(corpus=(str(passages),), augmentation="cloze", max_length=64, dropout=0.0, precision="fp32")
    losses = []
    for config in (whole, replace(whole, chunk_size=2)):
        devices = Devices("cpu")
        state = initial_state(config, devices, None)
        texts = next(open_corpus(config.corpus, held_out=0, passages=True).batches(6, seed=0))
        step = Step(config, state, devices, None, None)
        values = step.gradients(make_tokeniser(config, state.encoder, None, devices)(texts))
        losses.append([values["loss"].item(), step.gradient_norm().item()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_run_that_is_taken_up_draws_the_pairs_that_it_would_have(
    make_config: MakeConfig, passages: Path, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"corpus": (str(passages),), "augmentation": "cloze", "max_steps": 4, "eval_every": 2}
    whole, cut = make_config("whole", **settings), make_config("cut", **settings)
    _, said = fitted(whole)
    assert known_item.METRIC in said, "held-out passages judge it"
    write = Record.write

    def write_until(self: Record, kind: str, at: int, values: Any) -> None:
        write(self, kind, at, values)
        if (kind, at) == ("train", 3):
            raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(Record, "write", write_until)
        fitted(cut)
    fitted(cut, resume=True)
    assert _losses(cut) == _losses(whole)


def _losses(config: RunConfig) -> list[float]:
    lines = (Path(config.run) / record.METRICS).read_text(encoding="utf-8").splitlines()
    return [row["loss"] for row in map(json.loads, lines) if row["kind"] == "train"]


def test_titles_and_sentences_that_are_taken_out_ask_for_their_passage() -> None:
    asked = ["Of rivers\nA river is long and wide. It ends in the sea.", "Stones are hard."]
    found = known_item.collection(asked, ["Of paper\nPaper is thin."])
    assert found.queries["title0"] == "Of rivers" and len(found.queries) == 2
    assert {found.queries["sentence0"], found.documents["d0"]} == {"A river is long and wide.", "It ends in the sea."}
    assert found.documents["o0"] == "Paper is thin." and found.documents["d1"] == "Stones are hard."
    right = retrieval.score({"title0": ["d0", "o0"], "sentence0": ["o0", "d0"]}, found)
    assert right.ndcg10 == pytest.approx(100 * (1 + 1 / 1.584962500721156) / 2)


def test_passages_that_nothing_asks_for_choose_no_step(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"word number {number}\n" for number in range(60)), encoding="utf-8")
    with pytest.raises(CorpusError, match="60 are single sentences"):
        open_corpus([str(lines)], passages=True)
    lines.write_text("".join(f"Yes. No. {number}.\n" for number in range(60)), encoding="utf-8")
    with pytest.raises(CorpusError, match="--dev-data"):
        by_known_items(open_corpus([str(lines)], passages=True))


def test_what_training_changed_is_told_with_queries_that_changed_most() -> None:
    """Compare an encoder that knows words with one that knows none."""
    words = "river stone market guitar paper winter night bread ferry lamp".split()
    texts = [f"The {a} is near the {b}. Nobody saw a {a} or a {b} there." for a in words for b in words if a != b]

    def knows(given: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[word in text for word in words] for text in given], np.float32)

    def knows_none(given: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[len(text), 1] for text in given], np.float32)

    found = known_item.collection(texts[:20], texts[20:])
    first, *examples = gain(knows_none, knows, found)
    assert "+" in first and len(examples) == 9
    assert sum("now: its own passage" in line for line in examples) == 3
    assert len(list(gain(knows, knows, found))) == 1, "nothing changed"


def test_queries_and_passages_have_the_prompts_of_the_encoder(
    make_config: MakeConfig, passages: Path, tiny_backbone: Path, fitted: Fit, tmp_path: Path
) -> None:
    """Select weights and compare encoders with the prompts that searches use."""
    prompted = Path(shutil.copytree(tiny_backbone, tmp_path / "prompted"))
    prompts = {"query": "river stone market ", "document": "sea sun night "}
    (prompted / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    config = make_config(backbone=str(prompted), corpus=(str(passages),), augmentation="cloze", max_steps=2)
    outcome, _ = fitted(config)
    corpus = open_corpus([str(passages)], passages=True)
    with_prompts, without = (by_known_items(corpus, each).scores(outcome.encoder.encode) for each in (prompts, {}))
    assert outcome.best.score == pytest.approx(with_prompts[known_item.METRIC])
    assert outcome.best.score != pytest.approx(without[known_item.METRIC])
    found = adapt._found(outcome.encoder, known_item.test_collection(corpus))
    expected = retrieval.rankings(outcome.encoder.encode, known_item.test_collection(corpus), prompts=prompts)
    assert found.rankings == expected


@pytest.mark.parametrize(
    ("options", "preset"),
    [
        ([], "minilm-passages"),
        (["--corpus", "PASSAGES"], "minilm-passages"),
        (["--corpus", "LINES"], "minilm-passages"),
        (["--corpus", "SENTENCES"], "minilm"),
        (["--set", "augmentation=token-swapping"], "minilm"),
        (["--preset", "minilm"], "minilm"),
        (["--preset", "minilm-cls", "--corpus", "PASSAGES"], "minilm-cls"),
    ],
)
def test_the_corpus_chooses_between_sentences_and_passages(
    options: list[str], preset: str, passages: Path, corpus_file: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "documents.txt"
    lines.write_text("".join(f"{text}\r\n" for text in (RIVER, STONE)), encoding="utf-8")
    files = {"PASSAGES": str(passages), "LINES": str(lines), "SENTENCES": str(corpus_file)}
    config = train.resolve(parse(["train", "dclr", *(files.get(one, one) for one in options)]))
    assert config.preset == preset
    assert (config.positives is not None) == preset.endswith("passages")


def test_a_pair_has_two_texts(make_config: MakeConfig, tiny_backbone: Path) -> None:
    config = from_preset("distillation", backbone=str(tiny_backbone)).override(
        {"augmentation": "cloze", "device": "cpu", "precision": "fp32"}
    )
    with pytest.raises(ConfigError, match="has only one"):
        initial_state(config, Devices("cpu"), None)
    with pytest.raises(ConfigError, match="augmentation_rate"):
        make_config(augmentation="crop", augmentation_rate=0.2)


@pytest.mark.parametrize("params", [{"positives": "mean-sampling"}, {"negatives": "shared-mean"}])
def test_the_texts_of_a_pair_are_not_averaged(params: dict[str, Any], tiny_backbone: Path) -> None:
    config = from_preset("imsimcse", backbone=str(tiny_backbone)).override({"augmentation": "cloze", **params})
    with pytest.raises(ConfigError, match=r"positives=mean-sampling|negatives=shared-mean"):
        initial_state(replace(config, device="cpu"), Devices("cpu"), None)


@pytest.mark.slow
def test_force_replaces_a_run_and_nothing_else(
    make_config: MakeConfig, corpus_file: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "simcse", "--backbone", str(tiny_backbone), "--corpus", str(corpus_file), "--max-steps", "1"]
    command += ["--set", "batch_size=8", "--set", "device=cpu", "--out", "artifacts/one"]
    assert main(command) == 0
    (tmp_path / "runs" / "other").mkdir()
    assert main([*command, "--seed", "7"]) != 0
    assert main([*command, "--seed", "7", "--resume", "--force"]) != 0
    assert main([*command, "--seed", "7", "--force"]) == 0
    assert record.stored_config(tmp_path / "runs" / "one", RunConfig).seed == 7
    assert (tmp_path / "runs" / "other").is_dir()


@pytest.mark.slow
def test_adapt_trains_whitens_and_compares(
    passages: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["adapt", str(passages), "--backbone", str(tiny_backbone), "--out", "adapted", "--max-steps", "2"]
    command += ["--json", "compared.json"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert all(f"  {name}: " in said for name in (tiny_backbone, "adapted-trained", "adapted"))
    compared = json.loads(Path("compared.json").read_text())
    start, *made = compared["encoders"]
    assert [one["encoder"] for one in (start, *made)] == [str(tiny_backbone), "adapted-trained", "adapted"]
    assert all(f"{one['ndcg10']:.2f}, {one['gain']:+.2f} [{one['low']:+.2f}, " in said for one in made)
    better = max(made, key=lambda one: one["ndcg10"])
    assert compared["best"] == (better["stage"] if better["gain"] > 0 else None)
    assert record.stored_config(tmp_path / "runs" / "adapted-trained", RunConfig).augmentation == "cloze"
    assert (bundle.load(tmp_path / "adapted").manifest.run or {})["postprocess"] == "whitening"
    assert main(command) != 0, "the run is there"
    held = Path("adapted/manifest.json").read_bytes()
    other = ["adapt", str(passages), "--backbone", str(tiny_backbone), "--max-steps", "2"]
    shutil.move("adapted", "mine")
    assert main([*other, "--out", "mine"]) != 0, "an encoder of an earlier run is there"
    assert not Path("runs/mine-trained").exists()
    assert Path("mine/manifest.json").read_bytes() == held
    assert main([*command, "--force"]) == 0
    capsys.readouterr()
    assert main(["adapt", str(passages), "--backbone", "adapted", "--out", "again", "--max-steps", "2"]) == 0
    assert "  again-trained: " in capsys.readouterr().out and not Path("again").exists(), "it has a whitening already"


@pytest.mark.slow
def test_adapt_only_trains_where_texts_are_too_few_to_whiten(
    passages: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    few = Mock(census=Mock(sentences=Encoder.load(tiny_backbone).dim))
    monkeypatch.setattr(adapt, "open_corpus", lambda *_, **__: few)
    command = ["adapt", str(passages), "--backbone", str(tiny_backbone), "--out", "adapted", "--max-steps", "2"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "too few to whiten" in said.err
    assert "  adapted-trained: " in said.out
    assert not Path("adapted").exists()
    shutil.copytree("adapted-trained", "adapted")
    assert main([*command, "--force"]) == 0
    assert not Path("adapted").exists(), "it would look like the new encoder with a whitening"


@pytest.mark.parametrize("count", [20, 39])
def test_adapt_does_not_train_without_passages_for_a_comparison(
    passages: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    few = tmp_path / "few.jsonl"
    few.write_text("".join(passages.read_text(encoding="utf-8").splitlines(keepends=True)[:count]), encoding="utf-8")
    assert main(["adapt", str(few), "--backbone", str(tiny_backbone), "--out", "adapted", "--max-steps", "2"]) == 2
    assert not Path("runs").exists()


def test_adapt_takes_no_single_sentences(corpus_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapt", str(corpus_file)]) == 2
    assert str(corpus_file) in capsys.readouterr().err


def test_adapt_does_not_train_for_a_file_that_can_t_be_written(
    passages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adapt", str(passages), "--json", str(tmp_path / "absent" / "compared.json")]) == 2
    assert "absent is not a folder" in capsys.readouterr().err


def test_a_file_holds_out_the_same_texts_as_passages_and_as_sentences(tmp_path: Path) -> None:
    """Check that a held-out text is held out as a passage and as a sentence, even beyond the maximum number."""
    file = tmp_path / "mixed.jsonl"
    texts = [f"River {i} is long." if i % 3 else f"River {i} is long. It ends in sea {i}." for i in range(3000)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    as_passages = open_corpus([str(file)], passages=True, held_out=60)
    as_sentences = open_corpus([str(file)], held_out=60)
    assert set(as_passages.census.held_out) < set(as_sentences.census.held_out)
    assert len(as_passages.census.held_out) > 0 and as_passages.census.short == 2000


def test_what_chooses_a_step_does_not_judge_it(passages: Path) -> None:
    corpus = open_corpus([str(passages)], passages=True, held_out=8)
    choosing, judging = (
        {text for name, text in part.documents.items() if name.startswith("d")}
        for part in (known_item.selection_collection(corpus), known_item.test_collection(corpus))
    )
    assert choosing and judging and not choosing & judging


@pytest.mark.parametrize(
    ("read", "queries"), [(500, 100), pytest.param(None, 1000, marks=pytest.mark.slow)], ids=["a part", "whole"]
)
def test_no_query_of_the_documentations_collection_is_a_sentence_of_the_default_passages(
    read: int | None, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    documented = list(islice(python_docs.sections(), read))
    monkeypatch.setattr(python_docs, "sections", lambda: iter(documented))
    asked: dict[str, list[str]] = defaultdict(list)
    for query in known_item.collection_of(documented).queries.values():
        asked[query[:20]].append(query)
    texts = [text.rpartition("\n")[2] for text in documentation_passages()]
    begins = sum(text.startswith(tuple(asked[text[:20]])) for text in texts)
    count = sum(map(len, asked.values()))
    assert count > queries and begins < 0.02 * count, "but for sections that say the same twice"


@pytest.mark.parametrize("text", ["река течёт в море " * 20, "今日は天気がいいので散歩に行きました" * 8])
def test_a_script_without_capitals_is_asked_for_by_a_span(text: str) -> None:
    found = known_item.collection([text.strip()], [])
    assert list(found.queries) == ["sentence0"] and found.documents["d0"] != text


def test_a_title_that_two_passages_have_asks_for_neither() -> None:
    asked = [
        "Rivers\nA river is long and wide. It ends in the sea.",
        "Rivers\nStones are hard, and old. They stay.",
    ]
    assert all(name.startswith("sentence") for name in known_item.collection(asked, []).queries)


@pytest.mark.parametrize("title", [0, None, ["a"], " "])
def test_a_title_that_is_no_string_is_none(title: object, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"title": title, "text": RIVER}) + "\n", encoding="utf-8")
    assert next(open_corpus([str(file)], held_out=0, passages=True).batches(1, seed=0)) == [RIVER]


def test_force_removes_a_run_only_once_nothing_else_is_wrong(
    make_config: MakeConfig, fitted: Fit, tmp_path: Path
) -> None:
    config = make_config(max_steps=1)
    fitted(config)
    with pytest.raises(ValueError, match="nowhere"):
        fit(replace(config, eval_data=str(tmp_path / "nowhere")), io.StringIO(), force=True)
    assert record.has_run(Path(config.run))
    other = tmp_path / "model"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="model"):
        fit(replace(config, run=str(other)), io.StringIO(), force=True)
    assert (other / "config.json").is_file()


@pytest.mark.parametrize("text", ["river " * 300, "河" * 300])
def test_long_documents_are_cut_as_training_cuts_them(text: str) -> None:
    found = known_item.collection([], [text])
    assert len(word_starts(found.documents["o0"])) == known_item.MAX_WORDS


def test_the_column_of_the_texts_is_no_title(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"Title": RIVER, "text": STONE}) + "\n", encoding="utf-8")
    corpus = open_corpus([str(file)], column="title", held_out=0, passages=True)
    assert next(corpus.batches(1, seed=0)) == [RIVER]


@pytest.mark.parametrize(("count", "metric"), [(1200, KNOWN_ITEMS), (80, SelfRetrievalYardstick.metric)])
def test_a_promotion_compares_by_known_items_if_enough_are_held_out(count: int, metric: str, tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    texts = [f"River number {i} is long and wide. It ends in sea number {i}." for i in range(count)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    assert choose_yardstick(None, [str(file)]).metric == metric
