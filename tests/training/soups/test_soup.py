from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from models.bundle import bundle
from models.encoder.encoder import Encoder
from training import cli
from training.evaluation.selection import by_stsb_dev
from training.studies.soup import (
    GRID,
    Ingredient,
    Shares,
    SoupRecipe,
    SoupSearch,
    averaged,
    greedy,
    make_soup,
    with_start,
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tuned(ingredients: list[Ingredient], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the folders of the ingredients, each with its pooling in sentence-transformers' files."""
    folders = [tmp_path_factory.mktemp("tuned") / each.source for each in ingredients]
    for each, folder in zip(ingredients, folders, strict=True):
        each.encoder.save(folder)
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
        begun(folder, "org/start")
    return [str(folder) for folder in folders]


def begun(folder: Path, *starts: str) -> None:
    """Write the card of an encoder that was tuned from these models."""
    (folder / bundle.CARD).write_text(f"---\nbase_model: [{', '.join(starts)}]\n---\n")


def soup(*arguments: str) -> int:
    return cli.main(["soup", *arguments])


def made(folder: str = "soup") -> bundle.Manifest:
    return bundle.load(Path(folder)).manifest


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_the_papers_words(accuracy: dict[frozenset[int], float], count: int) -> set[int]:
    """Implement recipe 1 of the paper literally.

    "Sort the models in decreasing order of ValAcc; ingredients = {}; for i: if ValAcc(average(ingredients + {i})) >=
    ValAcc(average(ingredients)): ingredients += {i}".
    """
    ingredients: set[int] = set()
    for i in sorted(range(count), key=lambda i: accuracy[frozenset({i})], reverse=True):
        if not ingredients or accuracy[frozenset(ingredients | {i})] >= accuracy[frozenset(ingredients)]:
            ingredients.add(i)
    return ingredients


@given(seed=st.integers(0, 10_000), count=st.integers(1, 5), levels=st.integers(2, 40))
def test_greedy_is_the_papers_recipe(seed: int, count: int, levels: int) -> None:
    draw = random.Random(seed)
    accuracy = {
        frozenset(i for i in range(count) if subset >> i & 1): float(draw.randrange(levels))
        for subset in range(1, 2**count)
    }

    def score(shares: Shares) -> float:
        return accuracy[frozenset(i for i, share in enumerate(shares) if share)]

    shares = greedy(count, score)
    chosen = in_the_papers_words(accuracy, count)
    assert shares == tuple(1 / len(chosen) if i in chosen else 0 for i in range(count))
    assert score(shares) >= max(score(tuple(float(i == j) for j in range(count))) for i in range(count))


@pytest.mark.parametrize("best", GRID)
def test_the_share_of_the_start_is_the_best_of_the_grid(best: float) -> None:
    mixing = SoupRecipe(weights=(3, 1), towards="start")
    assert mixing.choose(2, lambda shares: -abs(shares[-1] - best)) == with_start((0.75, 0.25), best)
    assert sum(with_start((0.75, 0.25), best)) == pytest.approx(1)


def test_of_equal_scores_the_soup_as_it_is_is_taken() -> None:
    assert SoupRecipe(towards="start").choose(2, lambda _: 7.0) == (0.5, 0.5, 0.0)


def test_below_zero_it_goes_on_where_tuning_went(ingredients: list[Ingredient]) -> None:
    tuned, start = ingredients[:2]
    beyond = averaged([tuned, start], SoupRecipe(towards="start", share=-0.5).choose(1, lambda _: 0.0))
    begun = start.encoder.state_dict()
    for name, tensor in tuned.encoder.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(beyond[name], begun[name] + 1.5 * (tensor - begun[name]))


def test_greedy_comes_before_the_start() -> None:
    def score(shares: Shares) -> float:
        return shares[0] - 3 * abs(shares[2] - 0.3)

    assert SoupRecipe(greedy=True, towards="start").choose(2, score) == pytest.approx((0.7, 0.0, 0.3))
    assert SoupRecipe(greedy=True, towards="start", share=0.2).choose(2, score) == pytest.approx((0.8, 0.0, 0.2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "1,2"], "weights: 1, 2 are 2, for 3 encoders"),
        (["--weights", "1,-2,3"], "weights: 1, -2, 3 must all be at least 0, with a sum above 0"),
        (["--weights", "0,0,0"], "weights: 0, 0, 0 must all be at least 0"),
        (["--weights", "1e308,1e308,0"], "weights: 1e+308, 1e+308, 0 are too large: their sum is infinite"),
        (["--weights", "1,nan,1"], "weights: 1, nan, 1 must all be at least 0"),
        (["--weights", "1,1,1", "--greedy"], "weights: a greedy soup chooses its weights"),
        (["--share", "0.5"], "share: needs the initial encoder: name it with towards"),
        (["--towards", "minilm", "--share", "1.5"], "share: 1.5 is not from -1 to 1"),
        (
            ["--greedy"],
            "STS-B dev selects the weights of a greedy soup and a missing share: name the data with --eval-data",
        ),
        (["--eval-data", "nowhere"], "nowhere/STS/STSBenchmark: no such folder"),
    ],
)
@pytest.mark.usefixtures("_elsewhere")
def test_bad_wishes_are_one_line(arguments: list[str], message: str, tuned: list[str], capsys: Capture) -> None:
    assert soup(*tuned, "--out", "soup", *arguments) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not Path("soup").exists()


@pytest.mark.usefixtures("_elsewhere")
def test_text_among_the_weights(tuned: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        soup(*tuned, "--out", "soup", "--weights", "1,much,1")
    assert "expected numbers separated by commas, got '1,much,1'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("1_Pooling/config.json", ("mean_tokens", "cls_token"), "other: pooling is cls, but mean in "),
        ("config.json", ('"gelu"', '"relu"'), "other: architecture.hidden_act is relu, but gelu"),
        (
            "tokenizer.json",
            ('"lowercase": true', '"lowercase": false'),
            "other: tokenizer.normalizer.lowercase is False",
        ),
        ("tokenizer.json", ('"make"', '"made"'), "other: tokenizer.model.vocab.make is not there, but "),
    ],
)
@pytest.mark.usefixtures("_elsewhere")
def test_what_differs_is_named(
    file: str, change: tuple[str, str], message: str, tuned: list[str], capsys: Capture
) -> None:
    other = shutil.copytree(tuned[1], "other")
    text = Path(other, file).read_text()
    assert change[0] in text
    Path(other, file).write_text(text.replace(*change))
    assert soup(tuned[0], "./other", "--out", "soup") == 2
    err = capsys.readouterr().err
    assert message in err and "the encoders of a soup must be tuned from the same initial weights" in err


@pytest.mark.slow
@pytest.mark.usefixtures("_elsewhere")
def test_encoders_that_did_not_begin_alike_are_refused(tuned: list[str], stsb_data: Path, capsys: Capture) -> None:
    """However alike they are in shape; whether the third is the stranger, or the start."""
    shutil.copytree(tuned[2], "stranger")
    begun(Path("stranger"), "org/elsewhere")
    for sources in ([*tuned[:2], "./stranger"], [tuned[0], "--towards", "./stranger", "--eval-data", str(stsb_data)]):
        assert soup(*sources, "--out", "soup") == 2
        err = capsys.readouterr().err
        assert f"stranger: was tuned from org/elsewhere, but {tuned[0]} from org/start: the encoders of a soup" in err
        assert err.count("\n") == 1 and not Path("soup").exists()
    begun(Path("stranger"), "org/elsewhere", "org/start")
    assert soup(*tuned[:2], "./stranger", "--out", "soup") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("card", [True, False])
def test_of_encoders_that_nobody_vouches_for_the_weights_speak(tuned: list[str], card: bool, capsys: Capture) -> None:
    """Whatever their cards say: two models that were pre-trained into one folder have one name."""
    shutil.copytree(tuned[2], "brother")
    shutil.copytree(tuned[2], "stranger")
    draw = torch.Generator().manual_seed(0)
    file = "stranger/model.safetensors"
    others = {name: torch.randn(weights.shape, generator=draw) for name, weights in load_file(file).items()}
    save_file(others, file, metadata={"format": "pt"})
    if not card:
        for folder in ("brother", "stranger"):
            Path(folder, bundle.CARD).unlink()
    assert soup(*tuned[:2], "./brother", "--out", "soup") == 0
    assert soup(*tuned[:2], "./stranger", "--out", "other") == 2
    err = capsys.readouterr().err
    assert f"./stranger: has weights unrelated to those of {tuned[0]} (cosine " in err
    assert err.count("\n") == 1 and not Path("other").exists()


@pytest.mark.usefixtures("_elsewhere")
def test_a_soup_of_one_bundle_is_that_encoder(tiny_bundle: Path, capsys: Capture) -> None:
    before = bundle.load(tiny_bundle).manifest
    assert soup(str(tiny_bundle), "--out", "soup") == 0
    assert made().fingerprint == before.fingerprint
    assert made().run["ingredients"][0]["fingerprint"] == before.fingerprint  # type: ignore[index]
    assert "Model soups" not in Path("soup/README.md").read_text(), "nothing is averaged"
    assert capsys.readouterr().out == f"soup: 1 {tiny_bundle}\n"


@pytest.mark.usefixtures("_elsewhere")
def test_a_damaged_bundle_is_refused(tiny_bundle: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    assert soup(str(tiny_bundle), str(tmp_path / "damaged"), "--out", "soup") == 2
    assert "model.safetensors: changed (its SHA-256 differs" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("_elsewhere")
def test_the_manifest_tells_all_of_it(
    tiny_bundle: Path, other_bundle: Path, tiny_backbone: Path, stsb_data: Path, capsys: Capture
) -> None:
    """The start has no pooling of its own; it takes that of what was tuned from it."""
    wishes = ["--greedy", "--towards", str(tiny_backbone), "--eval-data", str(stsb_data)]
    assert soup(str(other_bundle), str(tiny_bundle), "--out", "soup", *wishes) == 0
    manifest = made()
    assert manifest.run is not None and manifest.scores is not None
    names = [(each["name"], each["fingerprint"]) for each in manifest.run["ingredients"]]
    assert names == [(m.name, m.fingerprint) for m in map(made, map(str, (other_bundle, tiny_bundle)))] + [(None, None)]
    shares = [each["share"] for each in manifest.run["ingredients"]]
    assert sum(shares) == pytest.approx(1)
    tried = {tuple(each["shares"]): each["score"] for each in manifest.run["tried"]}
    assert tried[tuple(shares)] == max(tried.values()) == manifest.scores["stsb_dev_spearman"]
    assert {0.0, 0.5, 1.0} <= {shares[-1] for shares in tried}
    assert manifest.run["soup"] == {"weights": None, "greedy": True, "towards": str(tiny_backbone), "share": None}
    assert (manifest.pooling, manifest.backbone, "STSB" in manifest.scores) == ("mean", "tiny", True)
    read: Any = ModelCard.load("soup/README.md")
    told = {(one.dataset_name, one.dataset_split): one.metric_value for one in read.data.eval_results}
    dev, test = (round(manifest.scores[name], 2) for name in ("stsb_dev_spearman", "STSB"))
    assert told == {("STS-B (SentEval)", "dev"): dev, ("STS-B (SentEval)", "test"): test}
    out, err = capsys.readouterr()
    assert f"stsb_dev_spearman {max(tried.values()):.4f}" in out
    assert err.count("stsb_dev_spearman") == len(tried), "each is judged once"


def test_every_ingredient_is_judged_as_the_encoder_it_is(tuned: list[str], stsb_data: Path) -> None:
    selection = by_stsb_dev(stsb_data)
    pot = SoupSearch([Ingredient.load(each) for each in tuned], selection, io.StringIO())
    alone = [pot.score(tuple(float(i == j) for j in range(3))) for i in range(3)]
    expected = [selection.scores(Encoder.load(each).encode)["stsb_dev_spearman"] for each in tuned]
    assert alone == pytest.approx(expected, abs=1e-9)
    assert len(set(expected)) == 3, "they would be equal whatever was judged"


def test_test_sets_choose_nothing(tuned: list[str], stsb_data: Path, tmp_path: Path) -> None:
    """With every score of the test part turned round, the choice is the same."""
    shutil.copytree(stsb_data, tmp_path / "turned")
    file = tmp_path / "turned" / "STS" / "STSBenchmark" / "sts-test.csv"
    rows = [line.split("\t") for line in file.read_text().splitlines()]
    file.write_text("".join("\t".join([*row[:4], str(5 - float(row[4])), *row[5:]]) + "\n" for row in rows))
    mixing = SoupRecipe(greedy=True)

    def chosen(data: Path) -> Sequence[float]:
        return make_soup(tuned, mixing, by_stsb_dev(data), io.StringIO()).shares

    assert chosen(stsb_data) == chosen(tmp_path / "turned")


@pytest.mark.slow
@pytest.mark.usefixtures("_elsewhere")
def test_the_card_cites_what_was_done(tiny_bundle: Path, other_bundle: Path, tiny_backbone: Path) -> None:
    assert soup(str(tiny_bundle), str(other_bundle), "--out", "uniform") == 0
    assert soup(str(tiny_bundle), "--towards", str(tiny_backbone), "--share", "0.25", "--out", "near") == 0
    assert soup(str(tiny_bundle), "--towards", str(tiny_backbone), "--share", "-0.25", "--out", "beyond") == 0
    uniform, near, beyond = (Path(folder, "README.md").read_text() for folder in ("uniform", "near", "beyond"))
    assert "Model soups" in uniform and "Robust fine-tuning" not in uniform
    assert "Model soups" in near and "Robust fine-tuning" in near
    assert "task arithmetic" in beyond and "Robust fine-tuning" not in beyond
    assert json.loads(Path("near/manifest.json").read_text())["run"]["ingredients"][1]["share"] == 0.25
