"""Tests of the papers' studies: found, listed, run as published, and compared with recorded results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.training.studies.conftest import MakeStudy, call, line
from training.cli.options import parse
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.report import published
from training.studies import description, papers
from training.studies.description import STUDIES, Reported, Study, file_of, name_of
from training.studies.papers import (
    PAPERS,
    RECORD,
    describe_papers,
    files_of,
    left_out,
    lines,
    recorded,
    studies,
    verdict,
)
from training.studies.plan import FOLDER, cpu_hours, gpu_hours, study_folder
from training.studies.results import Result, RunRecord
from training.studies.summary import SeedScores
from training.studies.trial import StudyError

ROOT = STUDIES.parent


def page(paper: str, results: Path) -> str:
    return files_of(paper, results)[f"{paper}.md"]


def keep(results: Path, study: Study, scores: Mapping[str, Sequence[float]], **more: Any) -> RunRecord:
    """Record the scores of each label's seeds, with further fields of a result."""
    record = RunRecord(results / RECORD, study.name)
    for trial in study.trials():
        of = scores.get(trial.label, ())[0 if trial.untrained else trial.config.seed :][:1]
        for score in of:
            record.add(trial, line("", 0, score, untrained=trial.untrained, **more))
    return record


def test_a_study_here_is_found_by_its_name_and_keeps_it() -> None:
    file = file_of(Path("dclr/table-2"))
    assert file == STUDIES / "dclr" / "table-2.toml"
    assert Study.read(file).name == name_of(file) == "dclr/table-2"
    assert study_folder(Path("dclr/table-2"), None) == FOLDER / "dclr/table-2"
    assert file_of(Path("mine.toml")) == Path("mine.toml") and name_of(Path("mine.toml")) == "mine"


@pytest.mark.parametrize("name", ["dclr/table-9", "../studies/objectives", "mine"])
def test_a_name_of_no_study_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(StudyError, match=f"{name}: no such study; `isosphere study list`"):
        file_of(Path(name))


def test_as_published_base_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("""
        [base]
        objective = "gs-infonce"
        max_steps = 7
        [grid]
        seed = [0, 1]
        noise_ratio = [1.0]
        [published]
        objective = "gs-infonce"
        backbone = "bert-base-uncased"
        grid.seed = [5]
    """)
    study = Study.read(file).as_published()
    (trial,) = study.trials()
    assert study.name == "s" and trial.axes == {"seed": 5}
    assert (trial.config.backbone, trial.config.max_steps, trial.config.dropout) == ("bert-base-uncased", None, 0.2)
    file.write_text('[base]\nobjective = "simcse"\n')
    with pytest.raises(StudyError, match=r"--published: the file has no part \[published\]"):
        Study.read(file).as_published()


def test_what_is_run_as_published_has_a_folder_of_its_own(
    make_study: MakeStudy, stsb_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carried_out: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    backbone = Study.read(make_study()).base["backbone"]
    published = f"""
        [[arm]]
        name = "as it was"
        untrained = true
        [published]
        backbone = {backbone!r}
        eval_data = {str(stsb_data)!r}
        device = "cpu"
        pooling = "mean"
    """
    assert call("run", str(make_study(published)), "--published") == 0
    (folder,) = FOLDER.iterdir()
    result = json.loads((folder / "results.jsonl").read_text())
    assert folder.name == "tiny-published" and (result["id"], result["arm"]) == (*carried_out, "as it was")


@pytest.mark.parametrize("part", ['scores = {"a" = 1}', 'of = "x"', 'of = "x"\nscores = {"a" = "b"}'])
def test_a_report_that_is_none_is_refused(tmp_path: Path, part: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(f'[base]\nobjective = "simcse"\n[reported]\n{part}\n')
    with pytest.raises(StudyError, match="reported: expected `of`, text, and `scores`"):
        Study.read(file)


def test_the_list_says_of_each_what_it_asks_needs_and_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", "gs-infonce") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "gs-infonce/table-3: How many Gaussian negatives are best?" in said
    assert "noise, noise_ratio 16.0." in said and "27 runs from minilm; --data with the STS tasks" in said
    assert "--published: 24 runs from bert-base-uncased, bert-large-uncased, roberta-base, roberta-large" in said
    assert "dclr/" not in said


@pytest.mark.slow
def test_all_papers_are_listed_each_table_once() -> None:
    said = describe_papers(list(PAPERS))
    for paper in PAPERS:
        for name in (*(study.name for study in studies(paper)), *(each.name for each in left_out(paper))):
            assert said.count(f"\n{name}: ") == 1


def test_what_is_left_out_has_a_reason_and_its_command_can_be_parsed() -> None:
    without = [each for paper in PAPERS for each in left_out(paper)]
    assert all(each.reason and each.about and each.paper for each in without)
    for each in without:
        if each.instead:
            program, *arguments = shlex.split(each.instead, comments=True)
            assert program == "isosphere"
            parse(arguments)


def test_hours_grow_with_views_steps_and_size() -> None:
    noise = Study.read(STUDIES / "imsimcse/table-1.toml").trials()
    by_label = {trial.label: cpu_hours([trial]) for trial in noise}
    assert by_label["noise, negatives-minus-noise"] > 3 * by_label["SimCSE"], "20 views"
    published = Study.read(STUDIES / "gs-infonce/table-1.toml").as_published().trials()
    hours = {trial.label: gpu_hours([trial]) for trial in published}
    assert hours["SimCSE, bert-large-uncased"] == pytest.approx(3 * hours["SimCSE, bert-base-uncased"])
    assert cpu_hours([*noise, *noise]) == pytest.approx(cpu_hours(noise)), "each run once"


SEEDS = SeedScores((70.0, 70.2))
SCORES = {"SimCSE": (70.0, 70.1, 69.9), "DCLR": (72.0, 72.2, 71.8)}


def test_a_page_sets_the_papers_number_beside_ours_with_a_verdict(tmp_path: Path) -> None:
    study = Study.read(STUDIES / "dclr/table-1.toml")
    simcse, dclr = lines(study, recorded(study, keep(tmp_path, study, SCORES)))
    assert (simcse.paper, dclr.paper, simcse.verdict) == (76.25, 77.22, "")
    assert dclr.gain == pytest.approx(2.0) and dclr.noise is not None and dclr.noise < 1
    assert dclr.verdict == "reproduced"
    said = page("dclr", tmp_path)
    assert "| **SimCSE** | 76.25 | – | 70.00 ± 0.10 | 3 | – |  |" in said
    assert "| DCLR | 77.22 | +0.97 | 72.00 ± 0.20 | 3 | +2.00 [" in said
    assert "**Reproduced: our runs reproduce 1 of 1 differences that we could check.**" in said
    other = page("gs-infonce", tmp_path)
    assert "| **SimCSE** | 76.25 | – | 70.00 ± 0.10 | 3 | – |  |" in other, "the papers share these runs"


@pytest.mark.parametrize(
    ("dclr", "expected"),
    [
        ((68.0, 68.2, 67.8), "not reproduced: worse"),
        ((69.0, 72.0, 70.0), "not reproduced: no difference shown"),
        ((75.0,), "one seed: no verdict"),
        ((), "not run yet"),
    ],
)
def test_what_the_seeds_do_not_show_is_not_reproduced(dclr: tuple[float, ...], expected: str) -> None:
    study = Study.read(STUDIES / "dclr/table-1.toml")
    scores = {**SCORES, "DCLR": dclr}
    found = [line(arm, seed, y) for arm, of in scores.items() for seed, y in enumerate(of)]
    results = [Result.checked(each) for each in found]
    assert lines(study, results)[1].verdict == expected
    if not dclr:
        assert verdict(lines(study, results)).endswith("Not run yet: 1 of 2 arms.")


def test_an_arm_without_all_seeds_is_compared_over_the_same_seeds() -> None:
    study = Study.read(STUDIES / "dclr/table-1.toml")
    scores = {"SimCSE": (70.0, 71.0, 75.0), "DCLR": (70.5, 71.7)}
    results = [Result.checked(line(arm, seed, y)) for arm, of in scores.items() for seed, y in enumerate(of)]
    simcse, dclr = lines(study, results)
    assert dclr.gain == pytest.approx(0.6)
    assert simcse.here is not None and simcse.here.mean == 72.0
    fewer = [each for each in results if each.arm != "SimCSE" or each.axes["seed"] == 1]
    simcse, dclr = lines(study, fewer)
    assert dclr.gain == pytest.approx(0.7) and dclr.here is not None and dclr.here.mean == pytest.approx(71.1)


def test_a_verdict_says_how_much_is_reproduced_or_why_nothing_can_be() -> None:
    line = papers.Line("a", own=False, paper=77.0, paper_gain=1.0, here=SEEDS, gain=1.0, noise=0.5)
    worse, silent = replace(line, gain=-1.0), replace(line, paper=None, paper_gain=None)
    single, missing = replace(line, noise=None), replace(line, here=None, gain=None, noise=None)
    assert verdict([line, silent]).startswith("Reproduced: our runs reproduce 1 of 1 ")
    assert verdict([line, worse]).startswith("Partly reproduced: our runs reproduce 1 of 2 ")
    assert verdict([line, worse, missing]).startswith("Partly reproduced so far: our runs reproduce 1 of 3 ")
    assert verdict([line, missing]).startswith("Partly reproduced so far: our runs reproduce 1 of 2 ")
    assert verdict([worse, single]).startswith("Not reproduced so far: our runs reproduce 0 of 2 ")
    assert verdict([single]).startswith("No verdict yet")
    assert verdict([missing]) == "Not run yet."
    assert verdict([silent]).startswith("Not testable here: ")
    assert verdict([line, missing], "because.") == "Not testable here: because. Not run yet: 1 of 2 arms."


def test_an_arm_of_which_the_paper_has_no_number_has_none_to_compare_with() -> None:
    study = Study.read(STUDIES / "dclr/table-1.toml")
    results = [Result.checked(line(arm, seed, y)) for arm, of in SCORES.items() for seed, y in enumerate(of)]
    silent = replace(study, reported=Reported("nothing", {}))
    assert lines(silent, results)[1].verdict == "better; no difference in the paper to compare with"


def test_transfer_is_compared_by_the_transfer_tasks() -> None:
    scores = {**dict.fromkeys(TRANSFER_TASKS, 80.0), "STS12": 1.0}
    study = Study.read(STUDIES / "whitenedcse/table-2.toml")
    (simcse, _) = lines(study, [Result.checked(line("SimCSE", 0, 0.0, scores=scores))])
    assert simcse.here is not None and simcse.here.mean == pytest.approx(80)


def test_runs_from_the_papers_backbone_have_a_table_of_their_own(tmp_path: Path) -> None:
    keep(tmp_path, Study.read(STUDIES / "dclr/table-1.toml").as_published(), {"DCLR, roberta-base": (75.0,)})
    said = page("dclr", tmp_path)
    assert "| DCLR, roberta-base | 77.87 | +1.30 | 75.00 | 1 | – | baseline not run yet |" in said
    assert (
        "## Table 1: `dclr/table-1 --published`" in said
        and "Backbone of our runs: bert-base-uncased, roberta-base, " in said
    )


def test_dclr_from_simcses_large_weights_is_compared_with_these_weights(tmp_path: Path) -> None:
    large = "princeton-nlp/unsup-simcse-bert-large-uncased"
    study = Study.read(STUDIES / "dclr/table-1.toml").as_published()
    scores = {f"SimCSE, its authors' weights, {large}": (78.0,), f"DCLR, {large}": (78.5, 78.6)}
    keep(tmp_path, study, {**scores, "SimCSE, bert-base-uncased": (76.0,)})
    said = page("dclr", tmp_path)
    assert "| DCLR, princeton-nlp/unsup-simcse-bert-large-uncased | 78.90 | +0.49 | 78.55 ± 0.07 | 2 | +0.55 [" in said


def test_what_was_recorded_under_another_name_stands_on_the_page_of_the_main_table(tmp_path: Path) -> None:
    of = {"simcse": (70.0, 70.1, 69.9), "dclr": (70.0, 70.2, 69.8)}
    runs = [
        line("", seed, y, axes={"objective": arm, "seed": seed}) for arm, ys in of.items() for seed, y in enumerate(ys)
    ]
    (tmp_path / "objectives.jsonl").write_text("".join(json.dumps(each) + "\n" for each in runs))
    said = page("dclr", tmp_path)
    assert "(`objectives`) | 77.22 | +0.97 | 70.00 ± 0.20 | 3 | +0.00 [" in said
    assert "not reproduced: no difference shown" in said and "objectives" not in page("imsimcse", tmp_path)


@pytest.mark.parametrize(
    "name", ["dclr/table-1", "gs-infonce/table-1", "whitenedcse/table-1", "whitenedcse/table-2", "imsimcse/table-3"]
)
def test_the_papers_numbers_of_a_main_table_are_those_beside_an_evaluation(name: str) -> None:
    """From minilm the rows are those of BERT-base."""
    study = Study.read(STUDIES / f"{name}.toml")
    rows = published.TRANSFER_ROWS if study.base.get("transfer") else published.STS_ROWS
    known = {(row.backbone, row.method): row.mean for row in rows}
    expected = {}
    for trial in (*study.trials(), *study.as_published().trials()):
        # DCLR's large models start from SimCSE's weights, and so have its prefix.
        backbone = published.reported(trial.config.backbone.replace("unsup-simcse-", "")) or published.BERT
        if "bert-base-nli" not in trial.config.backbone:
            expected[trial.label] = known.get((backbone, trial.arm.partition(",")[0]))
    assert study.reported is not None
    assert study.reported.scores == {label: score for label, score in expected.items() if score is not None}


@pytest.mark.parametrize("paper", PAPERS)
def test_the_pages_in_the_documentation_are_those_of_the_recorded_results(paper: str) -> None:
    """Compare with the output of `isosphere study pages`."""
    written = [*(ROOT / "docs" / "papers").glob(f"{paper}.md"), *(ROOT / "docs" / "papers").glob(f"{paper}-*.svg")]
    expected = files_of(paper, ROOT / "benchmarks" / "results" / "studies")
    assert {file.name: file.read_text(encoding="utf-8") for file in written} == expected


CURVE = [{"step": step, "stsb_dev_spearman": 70.0, "uniformity": -2.0 - step / 100} for step in (0, 5, 10)]
COSINES = {"32": [0.5, 0.4, 0.3, 0.2], "64": [0.6, 0.5, 0.4, 0.3]}
FIGURES = {
    "dclr": {
        "dclr/figure-3": ["Mean of 7 tasks of each arm", "Mean of 7 tasks: difference to SimCSE"],
        "dclr/figure-4": ["Uniformity while training"],
        "dclr/figure-5": ["STS-B over fraction", "SICK-R over fraction"],
        "dclr/figure-6": [
            *("STS-B over threshold, phi", "STS-B over noise_ratio, k"),
            *("SICK-R over threshold, phi", "SICK-R over noise_ratio, k"),
        ],
    },
    "gs-infonce": {
        "gs-infonce/figure-1": [f"Nearest in-batch negatives, {arm}" for arm in ("untrained", "SimCSE", "GS-InfoNCE")]
    },
}


def drawn(content: str) -> list[str]:
    """Return the titles in a drawing."""
    return [part.text or "" for part in ElementTree.fromstring(content).findall("{*}text[@class='title']")]


def keep_all(results: Path, study: Study, without: Sequence[str] = ()) -> None:
    labels = {trial.label: (70.0, 70.1, 69.9) for trial in study.trials() if trial.label not in without}
    keep(results, study, labels, curve=CURVE, nearest_cosines=COSINES)


def test_each_study_of_a_figure_names_its_drawings() -> None:
    known = {name for of in FIGURES.values() for name in of}
    assert {
        each.name for paper in PAPERS for each in studies(paper) if each.figures or "/figure-" in each.name
    } == known


@pytest.mark.slow
@pytest.mark.parametrize("paper", FIGURES)
def test_a_figure_is_drawn_when_every_arm_has_a_run(paper: str, tmp_path: Path) -> None:
    for study in studies(paper):
        if study.figures:
            keep_all(tmp_path, study)
    files = files_of(paper, tmp_path)
    for name, titles in FIGURES[paper].items():
        file = f"{name.replace('/', '-')}.svg"
        assert drawn(files[file]) == titles
        assert f"with our runs: {'; '.join(titles)}]({file})" in files[f"{paper}.md"]
        assert "The drawing shows" not in files[f"{paper}.md"]


@pytest.mark.slow
def test_a_page_says_which_runs_a_drawing_lacks(tmp_path: Path) -> None:
    study = Study.read(STUDIES / "dclr/figure-5.toml")
    keep_all(tmp_path, study, without=["DCLR, fraction 0.1"])
    files = files_of("dclr", tmp_path)
    assert "dclr-figure-5.svg" not in files and "There is no drawing yet" in files["dclr.md"]
    keep(tmp_path, study, {"DCLR, fraction 0.1": (70.0, 71.0)})
    files = files_of("dclr", tmp_path)
    assert "dclr-figure-5.svg" in files and "The drawing shows 35 of 36 runs." in files["dclr.md"]


def test_all_differences_to_simcse_are_drawn_beside_the_papers(tmp_path: Path) -> None:
    scores = {**SCORES, "no noise": (70.0, 70.2), "random noise": (69.0,)}
    keep(tmp_path, Study.read(STUDIES / "dclr/table-2.toml"), scores)
    files = files_of("dclr", tmp_path)
    root = ElementTree.fromstring(files["dclr-differences.svg"])
    assert [part.text for part in root.iterfind(".//{*}text[@class='name mark-0']")] == ["DCLR", "no noise"]
    tips = [part[0].text for part in root.iterfind(".//{*}circle")]
    assert tips == ["DCLR, in the paper: 0.97"]
    assert "Not drawn: 5 of 7 arms, which have no interval yet." in files["dclr.md"]
    assert "gs-infonce-differences.svg" not in files_of("gs-infonce", tmp_path)


def test_a_figure_of_one_seed_has_no_differences(tmp_path: Path) -> None:
    study = Study.read(STUDIES / "dclr/figure-3.toml")
    keep(tmp_path, study, {trial.label: (70.0,) for trial in study.trials()})
    assert drawn(files_of("dclr", tmp_path)["dclr-figure-3.svg"]) == ["Mean of 7 tasks of each arm"]


def test_pages_are_written_where_they_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("pages", "--results", str(tmp_path / "none"), "--to", str(tmp_path / "pages"))
    with pytest.raises(StudyError, match="none is not a folder"):
        call(*wanted)
    assert not (tmp_path / "pages").exists()
    (tmp_path / "none").mkdir()
    assert call(*wanted) == 0
    assert sorted(file.stem for file in (tmp_path / "pages").iterdir()) == sorted(PAPERS)
    assert "**Not run yet.**" in (tmp_path / "pages" / "dclr.md").read_text()
    assert len(capsys.readouterr().out.splitlines()) == len(PAPERS)


def test_a_package_without_the_repository_says_where_the_studies_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (description, papers):
        monkeypatch.setattr(module, "STUDIES", tmp_path / "studies")
    monkeypatch.setattr(papers, "LEFT_OUT", tmp_path / "studies" / "left_out.toml")
    with pytest.raises(StudyError, match="checkout of the repository"):
        describe_papers(["dclr"])
    with pytest.raises(StudyError, match="checkout of the repository"):
        file_of(Path("dclr/table-2"))
