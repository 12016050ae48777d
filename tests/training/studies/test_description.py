from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.studies.description import Arm, Study, parse_settings
from training.studies.trial import StudyError, Trial

BASE = '[base]\nobjective = "simcse"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.toml"


def trials(file: Path, text: str, **changes: Any) -> list[Trial]:
    file.write_text(text)
    return Study.read(file).override(changes).trials()


def test_the_product_of_arms_and_axes(file: Path) -> None:
    found = trials(file, """
        name = "product"
        [base]
        backbone = "minilm"
        max_steps = 7
        [grid]
        seed = [0, 1]
        batch_size = [16, 32]
        [[arm]]
        name = "plain"
        objective = "simcse"
        [[arm]]
        name = "noise"
        objective = "gs-infonce"
        grid.noise_ratio = [1.0, 2.0]
    """)  # fmt: skip
    assert len(found) == 4 + 8 and len({trial.id for trial in found}) == 12
    labels = list(dict.fromkeys(trial.label for trial in found))
    assert labels == ["plain, batch_size 16", "plain, batch_size 32"] + [
        f"noise, batch_size {size}, noise_ratio {ratio}" for size in (16, 32) for ratio in ("1.0", "2.0")
    ]
    last = found[-1].config
    assert (last.objective, last.max_steps, last.batch_size, last.seed) == ("gs-infonce", 7, 32, 1)
    assert last.params.noise_ratio == 2 and (last.out, last.run) == ("", "")


def test_presets_and_ablations(file: Path) -> None:
    text = '[base]\nobjective = "dclr"\nbackbone = "bert-base-uncased"\n[grid]\nablation = ["none", "no-noise"]\n'
    whole, without = trials(file, text)
    assert (whole.config.preset, without.config.preset) == ("bert-base-uncased", "bert-base-uncased+no-noise")
    assert (whole.config.params.noise_ratio, without.config.params.noise_ratio) == (1, 0)
    assert (whole.label, without.label) == ("none", "no-noise")
    (other, _) = trials(file, text, preset="roberta-base")
    assert other.config.params.threshold == 0.85 and other.config.backbone == "bert-base-uncased"
    assert trials(file, text, max_steps=5)[0].config.max_steps == 5
    assert trials(file, text, max_steps="none")[0].config.max_steps is None


def test_ids_are_of_what_is_computed(file: Path) -> None:
    (one,) = trials(file, BASE + "seed = 3\n")
    (same,) = trials(file, 'name = "other"\n' + BASE + '[grid]\nseed = [3]\n[[arm]]\nname = "x"\n')
    assert same.id == one.id and same.label == "x"
    assert [trial.id for trial in trials(file, BASE + 'preset = "minilm+no-head"\n')] == [
        trial.id for trial in trials(file, BASE + "head = false\n")
    ], "the same values, whatever they are called"
    for change in ({"seed": 4}, {"temperature": 0.1}, {"fraction": 0.5}, {"untrained": True}, {"backbone": "x"}):
        (changed,) = trials(file, BASE + "seed = 3\n", **change)
        assert changed.id != one.id, change


def test_ids_are_of_what_lies_at_a_path_not_of_the_path(file: Path, stsb_data: Path, tmp_path: Path) -> None:
    corpus, data = tmp_path / "corpus.txt", tmp_path / "data"
    corpus.write_text("one\n")
    copytree(stsb_data, data)

    def known(**changes: Any) -> str:
        (trial,) = trials(file, BASE, **{"corpus": [str(corpus)], "eval_data": str(data), **changes})
        assert Trial.from_json(trial.to_json()).id == trial.id
        return trial.id

    first = known()
    assert known(eval_data=f"{data}/") == first == known(corpus=[f"{tmp_path}/data/../corpus.txt"])
    copytree(data, tmp_path / "moved")
    assert known(eval_data=str(tmp_path / "moved")) == first, "the same pairs elsewhere"
    corpus.write_text("two\n")
    assert (other := known()) != first
    test = data / "STS" / "STSBenchmark" / "sts-test.csv"
    test.write_text(test.read_text().replace("dog", "hound"))
    assert len({first, other, changed := known()}) == 3
    (data / "SICK").mkdir()
    (data / "SICK" / "SICK_test_annotated.txt").write_text("a task more\n")
    assert len({first, other, changed, known()}) == 4
    assert known(eval_data=str(stsb_data)) == other
    corpus.write_text("one\n")
    assert known(eval_data=str(stsb_data)) == first
    with pytest.raises(StudyError, match=r"s\.toml: corpus: .*nowhere\.txt is not a file"):
        known(corpus=[str(tmp_path / "nowhere.txt")])


def test_what_a_run_is_judged_by_is_part_of_its_id(file: Path, stsb_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    copytree(stsb_data, data)

    def known(**changes: Any) -> str:
        (trial,) = trials(file, BASE, **{"eval_data": str(data), **changes})
        assert Trial.from_json(trial.to_json()).id == trial.id
        return trial.id

    plain, asked = known(), known(transfer=True)
    assert plain != asked and plain == known(transfer=False)
    (data / "MR").mkdir()
    (data / "MR" / "rt-polarity.pos").write_text("fine\n")
    assert known() == plain and known(transfer=True) != asked
    assert len({known(untrained=True), known(untrained=True, transfer=True)}) == 2


def test_a_run_of_before_there_was_transfer_is_still_known(file: Path) -> None:
    (trial,) = trials(file, BASE)
    values = json.loads(trial.to_json())
    assert values.pop("transfer") is False
    assert Trial.from_json(json.dumps(values)) == trial


def test_an_encoder_is_known_by_what_lies_in_its_folder(file: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    def known(name: str) -> str:
        return trials(file, BASE, backbone=str(tmp_path) + name)[0].id

    copytree(tiny_backbone, tmp_path / "encoder")
    copytree(tiny_backbone, tmp_path / "copy")
    assert known("/encoder") == known("/encoder/") == known("/copy")
    (tmp_path / "copy" / "README.md").write_text("A card, with scores.\n")
    (tmp_path / "copy" / "onnx").mkdir()
    (tmp_path / "copy" / "onnx" / "model.onnx").write_text("a graph")
    assert known("/copy") == known("/encoder"), "judged, and exported"
    weights = tmp_path / "copy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert known("/copy") != known("/encoder"), "pre-trained anew"
    with pytest.raises(StudyError, match=r"s\.toml: .*/none: no such folder"):
        known("/none")


def test_values_that_are_close_are_two_arms(file: Path) -> None:
    near, far = trials(file, BASE + "[grid]\ntemperature = [0.05, 0.05000001]\n")
    assert (near.label, far.label) == ("temperature 0.05", "temperature 0.05000001")


def test_one_name_for_different_settings_is_refused(file: Path) -> None:
    arms = '[[arm]]\nname = "a, cls"\npooling = "mean"\n[[arm]]\nname = "a"\ngrid.pooling = ["cls"]\n'
    with pytest.raises(StudyError, match=r"s\.toml: 'a, cls' is the label of runs with different settings"):
        trials(file, BASE + "[grid]\nseed = [0, 1]\n" + arms)
    assert len(trials(file, BASE + "[grid]\nseed = [0, 1]\n" + arms.replace('"mean"', '"cls"'))) == 2


def test_what_is_not_trained_is_judged_once(file: Path) -> None:
    text = '[grid]\nseed = [0, 1, 2]\npooling = ["cls", "mean"]\n[[arm]]\nname = "raw"\nuntrained = true\n'
    found = trials(file, text, max_steps=9, nonsense=1)
    assert [trial.label for trial in found] == ["raw, cls", "raw, mean"] and all(trial.untrained for trial in found)


def test_neighbours_in_several_corpora_are_measured_without_training(file: Path) -> None:
    corpora = [file.with_name(name) for name in ("a.txt", "b.txt")]
    for corpus in corpora:
        corpus.write_text(f"{corpus}\n")
    text = f"untrained = true\nneighbours = 32\n[grid]\ncorpus = {[[str(corpus)] for corpus in corpora]}\n"
    assert [trial.config.corpus for trial in trials(file, BASE + text)] == [(str(corpus),) for corpus in corpora]


def test_what_is_not_trained_is_pooled_and_computed_as_what_is(file: Path) -> None:
    """Give untrained encoders the preset's pooling, because a gain would otherwise include an effect of pooling."""
    text = '[[arm]]\nname = "raw"\nuntrained = true\n[[arm]]\nname = "trained"\nobjective = "simcse"\n'
    for preset, pooling in (("minilm", "mean"), ("bert-base-uncased", "cls")):
        found = trials(file, f'[base]\npreset = "{preset}"\nbackbone = "some/folder"\ndevice = "cpu"\n{text}')
        assert [(trial.config.pooling, trial.config.device) for trial in found] == 2 * [(pooling, "cpu")]


def test_settings_replace_axes_and_bases_but_no_arm(file: Path) -> None:
    text = (
        BASE + '[grid]\nseed = [0]\n[[arm]]\nname = "a"\ngrid.batch_size = [8]\n[[arm]]\nname = "b"\nmax_length = 16\n'
    )
    found = trials(
        file, text, **parse_settings(["seed=[5, 6]", "batch_size=[2,4]", "learning_rate=1e-3", "device=cpu"])
    )
    assert [(t.arm, t.config.seed, t.config.batch_size) for t in found] == [
        ("a", 5, 2), ("a", 5, 4), ("a", 6, 2), ("a", 6, 4), ("b", 5, 64), ("b", 6, 64),
    ]  # fmt: skip
    assert {t.config.learning_rate for t in found} == {1e-3} and {t.config.device for t in found} == {"cpu"}
    with pytest.raises(StudyError, match=r"s\.toml: max_length: arm 'b' sets this key itself"):
        trials(file, text, max_length=8)
    with pytest.raises(StudyError, match=r"s\.toml: grid: seed: expected a list of values for the axis, got 5"):
        trials(file, text, seed=5)
    for broken in ("seed", "=5"):
        with pytest.raises(StudyError, match=f"--set {broken}: expected KEY=VALUE"):
            parse_settings([broken])
    for broken, message in (("9" * 5000, "Exceeds the limit"), ("[" * 5000, "nested too deep")):
        with pytest.raises(StudyError, match=f"^--set seed: {message}"):
            parse_settings([f"seed={broken}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[base\n", r"s\.toml: .*line 1"),
        ("name = " + "[" * 5000, r"s\.toml: nested too deep"),
        ("steps = 3\n", r"s\.toml: steps: unknown; a study has name, about, base, grid, arm"),
        ("grid = 3\n", r"s\.toml: grid: expected dict, got 3"),
        ('name = "../up"\n', r"s\.toml: name: '\.\./up' is not a valid name"),
        ("[base]\nseed = 1\n", r"s\.toml: objective: missing"),
        ("[base]\nobjective = 3\n", r"s\.toml: objective: expected text, got 3"),
        ('[base]\nobjective = "fly"\n', r"s\.toml: objective 'fly' is none of simcse"),
        (BASE + "tau = 1\n", r"s\.toml: tau: unknown; simcse has ablation, .*temperature"),
        (BASE + 'out = "x"\n', r"s\.toml: out: unknown"),
        (BASE + 'temperature = "hot"\n', r"s\.toml: temperature: expected a number, got 'hot'"),
        (BASE + "temperature = -1\n", r"s\.toml: temperature -1\.0 is not above 0"),
        (BASE + 'seed = "none"\n', r"s\.toml: seed: expected a whole number, got 'none'"),
        (BASE + "fraction = 0.0\n", r"s\.toml: fraction: 0\.0 is not greater than 0"),
        (BASE + 'fraction = 0.5\naugmentation = "cloze"\n', r"s\.toml: fraction: needs a corpus of sentences"),
        ('[base]\nobjective = "distillation"\n', r"s\.toml: teacher: distillation needs a teacher"),
        (BASE + 'fraction = "all"\n', r"s\.toml: fraction: expected a number, got 'all'"),
        (BASE + 'transfer = "all"\n', r"s\.toml: transfer: expected true or false, got 'all'"),
        (BASE + "[grid]\nseed = 3\n", r"s\.toml: grid: seed: expected a list"),
        (BASE + "[grid]\nseed = []\n", r"s\.toml: grid: seed: expected a list"),
        (BASE + "[grid]\nseed = [1, 1]\n", r"s\.toml: grid: seed: a value is given twice"),
        (BASE + "seed = 1\n[grid]\nseed = [1]\n", r"s\.toml: base: seed: is an axis already"),
        (BASE + "[grid]\nseed = [1]\n[[arm]]\nname = 'a'\nseed = 2\n", r"s\.toml: arm 1: seed: is an axis already"),
        (BASE + "[[arm]]\nseed = 2\n", r"s\.toml: arm 1: name: missing"),
        (BASE + "[[arm]]\nname = 'a'\n[[arm]]\nname = 'a'\n", r"s\.toml: arm: the name 'a' is given twice"),
        (BASE + "[[arm]]\nname = 'a'\nablation = 'x'\n", r"s\.toml: arm 'a': ablation of simcse: 'x' is none of"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_file(file: Path, text: str, message: str) -> None:
    with pytest.raises(StudyError, match=message) as raised:
        trials(file, text)
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"none\.toml: No such file"):
        Study.read(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(StudyError, match=r"bytes\.toml: "):
        Study.read(tmp_path / "bytes.toml")


@given(
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True),
    sizes=st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True),
    ratios=st.lists(st.floats(0, 9), min_size=1, max_size=3, unique=True),
)
def test_a_grid_is_its_product_and_survives_json(seeds: list[int], sizes: list[int], ratios: list[float]) -> None:
    axes: dict[str, Sequence[Any]] = {"seed": seeds, "batch_size": sizes, "noise_ratio": ratios}
    study = Study(Path("s"), "s", "", {"objective": "gs-infonce"}, axes, (Arm(""),))
    found = study.trials()
    points = [(t.config.seed, t.config.batch_size, t.config.params.noise_ratio) for t in found]
    assert points == [(seed, size, ratio) for seed in seeds for size in sizes for ratio in ratios]
    for trial in found:
        again = Trial.from_json(trial.to_json())
        assert again == trial and again.id == trial.id and again.label == trial.label


def test_what_is_no_run_is_refused() -> None:
    for text in ("", "[]", '{"config": {}}', '{"config": 3}'):
        with pytest.raises(StudyError, match="not a run of a study"):
            Trial.from_json(text)
