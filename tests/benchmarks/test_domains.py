"""Tests of the benchmark of domains: its results agree with `postprocess` and `evaluate`."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import domains
from models.encoder.encoder import Encoder
from training import cli
from training.evaluation import beir, retrieval

THINGS = ("man", "woman", "dog", "cat", "bird", "fish", "horse", "guitar", "river", "city")
DEEDS = ("can see", "will find", "can hear")


@pytest.mark.slow  # The test makes two exports.
def test_what_it_keeps_is_what_the_commands_do(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = tmp_path / "domain.txt"
    sentences.write_text(
        "".join(f"the {a} {deed} the {b}\n" for a, deed, b in itertools.product(THINGS, DEEDS, THINGS))
    )
    folder = tmp_path / "data" / "retrieval" / "things"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": thing, "text": f"a {thing} near the {other}"} for thing, other in itertools.pairwise(THINGS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"title": "", **row}) + "\n" for row in rows))
    asked = [{"_id": f"q{row['_id']}", "text": f"{row['_id']} and so on"} for row in rows]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    judged = "".join(f"q{row['_id']}\t{row['_id']}\t1\n" for row in rows)
    (folder / "qrels" / "test.tsv").write_text(f"{beir.HEADER}\n{judged}")

    source = Path(shutil.copytree(tiny_backbone, tmp_path / "prompted"))
    (source / "config_sentence_transformers.json").write_text('{"prompts": {"query": "many dogs and a river, "}}')

    monkeypatch.setattr(domains, "FILE", tmp_path / "domains.json")
    monkeypatch.setattr(domains, "POWERS", (0.5,))
    monkeypatch.setattr(domains, "autocast_dtype", lambda *_: None)  # The commands compute the same figures.
    data, encoder = ["--data", str(tmp_path / "data")], ["--encoder", str(source)]
    monkeypatch.setattr(sys, "argv", ["domains", "--corpus", str(sentences), *data, *encoder, "things"])
    domains.main()
    kept = json.loads((tmp_path / "domains.json").read_text())[f"things, {source.name}"]

    collection = beir.find(tmp_path / "data", "things")
    assert kept["queries"] == len(rows)
    plain = Encoder.load(source)
    asked_behind = retrieval.evaluate(plain.encode, collection, prompts=plain.prompts).ndcg10
    assert kept["ndcg10"] == round(asked_behind, 2) != round(retrieval.evaluate(plain.encode, collection).ndcg10, 2)
    for row in kept["whitened"]:
        out = tmp_path / f"centred {row['centred']}"
        settings = ["--set", "power=0.5", "--set", f"centred={row['centred']}"]
        command = ["postprocess", "whitening", str(source), "--corpus", str(sentences), "--out", str(out)]
        assert cli.main([*command, *settings]) == 0
        found = retrieval.evaluate(Encoder.load(out).encode, collection, prompts=plain.prompts).ndcg10
        assert row["ndcg10"] == round(found, 2)
        assert row["gain"][0] == pytest.approx(found - kept["ndcg10"], abs=0.011)
        assert row["draws"]["n"] == domains.DRAWS


def test_what_is_not_there_is_named_in_a_line(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--corpus", "missing.txt", "--data", str(tmp_path), "--encoder", str(tiny_backbone), "things"]
    monkeypatch.setattr(sys, "argv", ["domains", *asked])
    with pytest.raises(SystemExit) as ended:
        domains.main()
    assert ended.value.code == 2 and "no collection 'things'" in capsys.readouterr().err
    monkeypatch.setattr(beir, "find", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        domains.main()
    assert ended.value.code == 2 and "missing.txt" in capsys.readouterr().err
