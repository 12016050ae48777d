"""Tests of the choice of the fastest runtime from measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle import bundle
from models.bundle.bundle import ENGINES, Bundle, BundleError
from models.runtimes import REFERENCE, Pair, available
from models.runtimes.base import Options, RuntimeUnavailable
from models.runtimes.choice import Choice, barred, choose, fastest
from models.runtimes.measurement import RANK_LOSS, Measured

OPTIONS = Options("cpu", 1)
QUICK, ROUGH, BROKEN, ODD = Pair("quick", "bf16"), Pair("rough", "int8"), Pair("broken", "fp16"), Pair("odd", "bf16")
SLOWEST = Measured(*REFERENCE, 20.0, 1.0, 1.0, 0.0)


@pytest.fixture(scope="module")
def opened(tiny_bundle: Path) -> Bundle:
    return bundle.load(tiny_bundle)


def test_the_fastest_that_keeps_every_vector_and_their_order_wins() -> None:
    measured = [
        SLOWEST,
        Measured(*QUICK, 100.0, 5.0, 0.9995, 0.01),
        Measured(*ROUGH, 2000.0, 100.0, 0.995, 0.01),
        Measured(*BROKEN, 4000.0, 200.0, None, None),
        Measured(*ODD, 3000.0, 150.0, 0.9999, 0.2),
    ]
    pair = fastest(measured, among=[row.pair for row in measured])
    assert pair == QUICK
    rows = {Pair(row["runtime"], row["precision"]): row for row in Choice(pair, measured).table()}
    assert [pair for pair, row in rows.items() if row["chosen"]] == [QUICK]
    assert rows[QUICK]["why_not"] is None and rows[REFERENCE]["why_not"] == "slower"
    assert rows[ROUGH]["why_not"] == "cosine 0.99500 to onnxruntime fp32, below 0.999"
    assert rows[ODD]["why_not"] == "rank loss 0.200 to onnxruntime fp32, above 0.1"
    assert "not finite" in rows[BROKEN]["why_not"]
    json.dumps(list(rows.values()), allow_nan=False)
    assert str(Choice(pair, measured)).startswith("quick bf16 (5.0 times as fast as onnxruntime fp32")
    assert str(Choice(REFERENCE, measured)) == "onnxruntime fp32", "which is as fast as itself"


def test_only_what_was_asked_for_is_chosen() -> None:
    measured = [SLOWEST, Measured(*QUICK, 100.0, 5.0, 1.0, 0.0), Measured(*ROUGH, 10.0, 0.5, 1.0, 0.0)]
    assert fastest(measured, among=[ROUGH]) == ROUGH
    whys = {row["runtime"]: row["why_not"] for row in Choice(ROUGH, measured).table()}
    assert whys == {"onnxruntime": "not asked for", "quick": "not asked for", "rough": None}
    with pytest.raises(RuntimeUnavailable, match="none of broken fp16 reproduces the vectors"):
        fastest(measured, among=[BROKEN])


maybe = st.one_of(st.none(), st.floats(0, 1))


@given(st.lists(st.tuples(st.floats(0.1, 9), maybe, maybe, st.booleans()), max_size=4))
def test_law_nothing_unfaithful_is_chosen_and_nothing_faithful_is_quicker(
    others: list[tuple[float, float | None, float | None, bool]],
) -> None:
    measured = [SLOWEST] + [
        Measured(f"r{i}", "bf16", 1.0, times, cosine, loss, barred="drifts" if out else None)
        for i, (times, cosine, loss, out) in enumerate(others)
    ]
    rows = {row.pair: row for row in measured}
    chosen = rows[fastest(measured, among=list(rows))]
    assert chosen.least_cosine is not None and chosen.least_cosine >= bundle.GOLDEN_COSINE
    assert chosen.rank_loss is not None and chosen.rank_loss <= RANK_LOSS and chosen.barred is None
    quicker = [row for row in measured if (row.times_reference or 0) > (chosen.times_reference or 0)]
    assert not any(row.faithful for row in quicker)


def test_the_machine_itself_is_measured(opened: Bundle) -> None:
    made = choose(opened, OPTIONS)
    pairs = available(opened, OPTIONS)
    if len(pairs) == 1:
        assert made == Choice(REFERENCE)
        return
    assert {row.pair for row in made.measured} == set(pairs)
    assert made.pair in [row.pair for row in made.measured if row.faithful]
    assert made.measured[0].pair == REFERENCE and made.measured[0].times_reference == 1


def carrying(opened: Bundle, folder: Path, table: str) -> Bundle:
    """Return the bundle with this table of engines."""
    (folder / ENGINES).write_text(table)
    return Bundle(folder, replace(opened.manifest, files={**opened.manifest.files, ENGINES: "its hash"}))


def test_a_bundle_says_by_what_it_is_not_to_be_served(opened: Bundle, tmp_path: Path) -> None:
    assert barred(opened) == {}, "nobody promoted it"
    rows = [
        {"runtime": "quick", "precision": "bf16", "barred": "drifts"},
        {"runtime": "rough", "precision": "int8", "barred": None},
        {"runtime": "odd", "precision": "bf16"},
    ]
    assert barred(carrying(opened, tmp_path, json.dumps({"measured": rows}))) == {QUICK: "drifts"}


@pytest.mark.parametrize("table", ["", "[]", "{}", '{"measured": [1]}', '{"measured": 1}', '{"measured": [{}]}'])
def test_a_table_that_is_none_is_refused_by_its_file(opened: Bundle, tmp_path: Path, table: str) -> None:
    with pytest.raises(BundleError, match=r"engines\.json: not a table of engines"):
        barred(carrying(opened, tmp_path, table))
