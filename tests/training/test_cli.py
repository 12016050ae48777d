from __future__ import annotations

import errno
import json
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.bundle import bundle
from training import cli, run
from training.checkpoints.speed import FIGURES
from training.cli.options import parse
from training.cli.train import resolve
from training.config import RunConfig
from training.evaluation import suite
from training.evaluation.pairs import STS_TASKS
from training.loop import DivergedError
from training.machine.interrupt import InterruptedRun
from training.step import Step

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> int:
    """Return the exit code of a command."""
    try:
        return cli.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def small(backbone: Path, corpus: Path) -> list[str]:
    settings = ["batch_size=16", "eval_every=2", "precision=fp32", "device=cpu"]
    return [
        *("train", "simcse", "--backbone", str(backbone), "--corpus", str(corpus), "--max-steps", "3"),
        *(word for setting in settings for word in ("--set", setting)),
    ]


def test_train_leaves_a_bundle_and_a_run(tiny_backbone: Path, corpus_file: Path, capsys: Capture) -> None:
    assert call(*small(tiny_backbone, corpus_file), "--seed", "7") == 0
    out, err = capsys.readouterr()
    assert out.startswith("artifacts/simcse: self_retrieval_mrr10 0.")
    assert "step 3/3" in err
    manifest = json.loads(Path("artifacts/simcse/manifest.json").read_text())
    assert manifest["run"]["config"]["seed"] == 7
    assert Path("runs/simcse/metrics.jsonl").exists()

    assert call(*small(tiny_backbone, corpus_file)) == 2
    assert capsys.readouterr().err.count("runs/simcse already contains a run") == 1
    assert call(*small(tiny_backbone, corpus_file), "--resume", "--seed", "8") == 2
    assert capsys.readouterr().err.rstrip().endswith("changed: seed (7, 8)")
    beside = corpus_file.parent / "elsewhere" / ".." / corpus_file.name
    assert call(*small(tiny_backbone, beside), "--resume", "--out", "./artifacts/simcse") == 0, "the same paths"
    assert call("train", "simcse", "--resume") == 0, "options that are not given are the stored ones"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "the following arguments are required: "
            "train|adapt|pretrain|evaluate|study|promote|rollback|postprocess|soup|rebuild|data|list|finish|replay",
        ),
        (["fly"], "invalid choice: 'fly'"),
        (["train"], "name an objective (simcse"),
        (["train", "--config", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["train", "simcse", "--set", "dropout=1"], "dropout: 1.0 is not at least 0 and less than 1"),
        (["train", "simcse", "--set", "augmentation=token-shuffling", "--set", "augmentation_rate=.1"], "has no rate"),
        (["train", "simcse", "--set", "chunk_size=0"], "chunk_size: 0 is not above 0"),
        (["replay", "runs/simcse"], "runs/simcse contains no run"),
        (["finish", "runs/simcse"], "runs/simcse contains no run"),
        (["train", "dclr9"], "invalid choice: 'dclr9'"),
        (["train", "simcse", "--max-steps", "many"], "argument --max-steps: invalid int value: 'many'"),
        (["train", "simcse", "--max-steps", "0"], "max_steps: 0 is not above 0"),
        (["train", "simcse", "--set", "run="], "run: is empty, expected a folder"),
        (["train", "simcse", "--set", "out="], "out: is empty, expected a folder"),
        (["train", "simcse", "--out", ""], "out: is empty, expected a folder"),
        (["pretrain", "--set", "run="], "run: is empty, expected a folder"),
        (["pretrain", "--set", "out="], "out: is empty, expected a folder"),
        (["train", "simcse", "--seed", "-3"], "seed: -3 is below 0"),
        (["train", "simcse", "--preset", "huge"], "preset of simcse: 'huge' is none of"),
        (["train", "simcse", "--set", "tau=1"], "--set tau=1: 'tau' is none of"),
        (["train", "simcse", "--set", "temperature=hot"], "expected a number, got 'hot'"),
        (["train", "simcse", "--set", "temperature=-1"], "temperature -1.0 is not above 0"),
        (["train", "simcse", "--set", "device=abacus"], "device 'abacus'"),
        (["train", "simcse", "--set", "device=meta"], "device 'meta': "),
        (["train", "gs-infonce", "--set", "noise_ratio=1e30"], "noise_ratio 1e+30 is not from 0 to 1000"),
        (["train", "dclr", "--set", "noise_ratio=1e30"], "noise_ratio 1e+30 is not from 0 to 1000"),
        (["postprocess", "flow", "x", "--out", "o", "--seed", "9" * 23], f"seed: {'9' * 23} has more than 63 bits"),
        (["postprocess", "flow", "x", "--out", "o", "--seed", "-1"], "seed: -1 is below 0"),
        (["postprocess", "dcl", "x", "--out", "o", "--set", "learning_rate=1e40"], "learning_rate: 1e+40 is above"),
        (["postprocess", "flow", "x", "--out", "o", "--set", "learning_rate=1e308"], "learning_rate: 1e+308 is above"),
        (["train", "simcse", "--corpus", "nowhere.txt"], "nowhere.txt: No such file or directory"),
        (["train", "simcse", "--seed", "1", "--set", "seed=2"], "--set seed: --seed sets the same field"),
        (
            ["train", "simcse", "--max-steps", "1", "--set", "max_steps=2"],
            "--set max_steps: --max-steps sets the same field",
        ),
        (["pretrain", "--corpus", "a.txt", "--set", "corpus=b.txt"], "--set corpus: --corpus sets the same field"),
        (["train", "imsimcse", "--set", "samples=100000000"], "samples 100000000 is more than 1000"),
        (["train", "imsimcse", "--set", "artificial_rows=1000000000000"], "is more than 100000"),
        (["evaluate", "minilm", "--data", "x", "--beside", "a.json"], "--beside: the other evaluations appear in the"),
        (["study", "report", "nowhere.toml", "--out", "there"], "nowhere.toml: No such file or directory"),
        (["study", "status", ".", "--out", "there"], "--out: . is already the folder of a study"),
        (["train", "simcse", "--resume"], "runs/simcse contains no run"),
        (["study", "nowhere.toml", "--jobs", "2"], "nowhere.toml: No such file or directory"),
        (["study", "fly"], "invalid choice: 'fly'"),
        (["evaluate", "minilm"], "the following arguments are required: --data"),
        (["evaluate", "minilm", "--data", "x", "--tasks", "sts,chess"], "no task 'chess'; there is sts, transfer"),
        (["evaluate", "minilm", "--data", "nowhere"], "nowhere: no such folder"),
        (["evaluate", "minilm", "--data", "x", "--pooling", "average"], "pooling 'average' is not one of cls"),
        (["train", "simcse", "--set", "dev_tasks=stsb+sickr"], "dev_tasks: needs --eval-data without --dev-data"),
    ],
)
def test_bad_arguments_are_one_clear_line_and_exit_code_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("isosphere") and message in err
    assert err.count("\n") == 1


def test_a_backbone_that_is_not_there(corpus_file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert call(*small(tmp_path / "nothing", corpus_file)) == 2
    assert "nothing: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), 2, "runs/x: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x/metrics.jsonl"), 1, "metrics.jsonl: No space left"),
    ],
)
def test_what_can_not_be_written_is_one_line(
    error: OSError, code: int, message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(run, "fit", refuse)
    assert call("train", "simcse") == code
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.slow
def test_transformers_keeps_its_report_on_weights_to_itself(tiny_backbone: Path, corpus_file: Path) -> None:
    class Kept(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            said.append(entry.getMessage())

    said: list[str] = []
    library, kept = logging.getLogger("transformers"), Kept()
    library.setLevel(logging.WARNING)
    library.addHandler(kept)
    try:
        assert call(*small(tiny_backbone, corpus_file)) == 0
    finally:
        library.removeHandler(kept)
    assert said == []


def test_evaluation_data_without_the_benchmark(corpus_file: Path, tiny_backbone: Path, capsys: Capture) -> None:
    assert call(*small(tiny_backbone, corpus_file), "--eval-data", "nowhere") == 2
    assert "nowhere/STS/STSBenchmark: no such folder; `isosphere data get sts`" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            InterruptedRun("stopped after step 3 of 9"),
            130,
            "stopped after step 3 of 9; resume with the same command and --resume",
        ),
        (DivergedError("step 4: loss nan"), 1, "step 4: loss nan"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 4 TB\n#0"), 1, "4 TB; use a smaller batch_size"),
        (torch.OutOfMemoryError("CUDA out of memory."), 1, "CUDA out of memory.; use a smaller batch_size"),
        (MemoryError(), 1, "MemoryError; use a smaller batch_size"),
        (RuntimeError("[gloo/gloo/transport/tcp/pair.cc:537] Read error"), 1, "another process of this run has ended"),
    ],
)
def test_how_a_run_ends_early(
    error: BaseException, code: int, message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(run, "fit", fit)
    assert call("train", "simcse") == code
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_ctrl_c_in_the_last_step_comes_too_late(
    tiny_backbone: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step.__call__

    def pressed(self: Step, *rest: Any) -> Any:
        if self._state.step == 2:
            signal.raise_signal(signal.SIGINT)
        return step(self, *rest)

    monkeypatch.setattr(Step, "__call__", pressed)
    assert call(*small(tiny_backbone, corpus_file)) == 0
    assert bundle.load(Path("artifacts/simcse"))


def test_an_error_that_nobody_expected_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(*_: object, **__: object) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(run, "fit", fit)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        call("train", "simcse")


def test_a_config_that_is_nested_too_deep(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text("[" * 200_000)
    assert call("train", "--config", str(tmp_path / "config.json")) == 2
    assert "config.json: nested too deep" in capsys.readouterr().err


def resolved(*arguments: str) -> RunConfig:
    return resolve(parse(["train", "simcse", *arguments]))


def test_options_become_the_run() -> None:
    config = resolved(
        *("--backbone", "bert-large-uncased", "--corpus", "a.txt", "b.gz", "--eval-data", "data"),
        *("--max-steps", "9", "--out", "artifacts/mine", "--seed", "3", "--set", "temperature=0.1"),
    )
    assert (config.backbone, config.preset, config.learning_rate) == ("bert-large-uncased", "bert-large-uncased", 1e-5)
    assert (config.corpus, config.eval_data, config.max_steps) == (("a.txt", "b.gz"), "data", 9)
    assert (config.out, config.run, config.seed) == ("artifacts/mine", "runs/mine", 3)
    assert config.params.temperature == 0.1


@pytest.mark.slow
def test_a_config_is_the_run_once_more_bit_for_bit(tiny_backbone: Path, corpus_file: Path, capsys: Capture) -> None:
    assert call(*small(tiny_backbone, corpus_file), "--set", "augmentation=token-cutoff") == 0
    assert call("train", "--config", "runs/simcse/config.json") == 0
    assert "artifacts/simcse-2: self_retrieval_mrr10" in capsys.readouterr().out
    first, second = (bundle.load(Path(f"artifacts/{name}")).manifest for name in ("simcse", "simcse-2"))
    assert first.fingerprint == second.fingerprint
    assert first.run is not None and second.run is not None
    different = {key for key, value in first.run["config"].items() if second.run["config"][key] != value}
    assert different == {"run", "out"}
    weights, metrics = _ended("runs/simcse")
    assert _ended("runs/simcse-2") == (weights, metrics)
    assert call("train", "--config", "runs/simcse/config.json", "--seed", "7", "--out", "artifacts/seed-7") == 0
    assert _ended("runs/seed-7")[0] != weights


def _ended(folder: str) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
    """The last weights of a run, and its metrics but for speed."""
    weights = load_file(Path(folder) / "checkpoint.safetensors")
    lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
    metrics = [{key: value for key, value in line.items() if key not in FIGURES} for line in lines]
    return {name: tensor.flatten().tolist() for name, tensor in weights.items()}, metrics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backbone", "x"], "--backbone: the configuration in runs/simcse/config.json already sets it"),
        (["--resume"], "--resume: name the run to continue, by --out or --set run=FOLDER"),
        (["--teacher", "minilm"], "teacher: simcse with these settings uses no teacher: leave out minilm"),
        (["--preset", "minilm"], "--preset: the configuration in runs/simcse/config.json already sets it"),
    ],
)
def test_what_a_config_has_already_is_refused(
    arguments: list[str], message: str, make_config: Callable[..., RunConfig], capsys: Capture
) -> None:
    Path("runs/simcse").mkdir(parents=True)
    Path("runs/simcse/config.json").write_text(make_config().to_json())
    assert call("train", "--config", "runs/simcse/config.json", *arguments) == 2
    assert message in capsys.readouterr().err


def test_defaults() -> None:
    config = resolved()
    assert (config.backbone, config.preset, config.corpus) == ("minilm", "minilm-passages", ())
    assert (config.out, config.run) == ("artifacts/simcse", "runs/simcse")
    assert resolved("--set", "run=runs/other").run == "runs/other"


def test_list_names_every_objective_and_task(capsys: Capture) -> None:
    from training.objectives import OBJECTIVES

    assert call("list") == 0
    out = capsys.readouterr().out
    for name, recipe in OBJECTIVES.items():
        assert f"{name}: {recipe.summary}" in out
        assert all(f"  {preset}: " in out for preset in recipe.presets)
        assert all(f"  +{ablation}: " in out for ablation in recipe.ablations)
    assert "tasks: sts" in out


@pytest.mark.slow
def test_evaluate_prints_a_table_and_writes_json(
    tiny_bundle: Path, test_data: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {task: STS_TASKS[task] for task in ("STS13", "STS16", "STSB")}
    monkeypatch.setattr(suite, "STS_TASKS", quick)
    assert call("evaluate", str(tiny_bundle), "--data", str(test_data), "--json", "scores.json") == 0
    header, row = capsys.readouterr().out.splitlines()[2:4]
    assert header.split() == ["STS13", "STS16", "STSB", "mean"]
    content = json.loads(Path("scores.json").read_text())
    tasks = content["sts"]["tasks"]
    assert content["subject"]["pooling"] == "mean" and content["subject"]["max_length"] == 64
    assert [f"{tasks[task]['spearman']['all']:.2f}" for task in header.split()[:3]] == row.split()[-4:-1]
    assert tasks["STS16"]["pairs"] == 1186


def test_train_with_evaluation_data_selects_by_stsb_dev(
    tiny_backbone: Path, corpus_file: Path, stsb_data: Path, capsys: Capture
) -> None:
    assert call(*small(tiny_backbone, corpus_file), "--eval-data", str(stsb_data)) == 0
    out, err = capsys.readouterr()
    assert "stsb_dev_spearman" in err and "0 held out" in err
    header, row = out.splitlines()[:2]
    scores = json.loads(Path("artifacts/simcse/manifest.json").read_text())["scores"]
    assert header.split() == ["STSB", "mean"] and f"{scores['STSB']:.2f}" == row.split()[0]
    assert "stsb_dev_spearman" in scores and "STS mean" not in scores


def test_a_single_task_is_evaluated_by_its_name_and_has_no_mean(
    tiny_bundle: Path, stsb_data: Path, capsys: Capture
) -> None:
    command = ("evaluate", str(tiny_bundle), "--data", str(stsb_data), "--tasks", "STSB")
    assert call(*command, "--json", "scores.json", "--html", "scores.html") == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["STSB"]
    content = json.loads(Path("scores.json").read_text())
    assert [*content["sts"]["tasks"]] == ["STSB"] and "mean" not in content["sts"] and "transfer" not in content
    assert "STS-B" in Path("scores.html").read_text()


def test_train_with_own_pairs_selects_by_them(tiny_backbone: Path, corpus_file: Path, capsys: Capture) -> None:
    Path("dev.csv").write_text("sentence1,sentence2,score\na cat,a dog,3\na cat,the law,1\n")
    assert call(*small(tiny_backbone, corpus_file), "--dev-data", "dev.csv") == 0
    err = capsys.readouterr().err
    assert "dev_spearman" in err and "0 held out" in err
    assert "dev_spearman" in json.loads(Path("artifacts/simcse/manifest.json").read_text())["scores"]
    assert call(*small(tiny_backbone, corpus_file), "--dev-data", "nowhere.csv", "--out", "artifacts/other") == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_help_needs_no_more_than_a_screen(capsys: Capture, make_config: Callable[..., RunConfig]) -> None:
    assert call("train", "--help") == 0
    assert len(capsys.readouterr().out.splitlines()) < 40
