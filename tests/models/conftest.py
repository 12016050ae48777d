"""Fixtures: loaded bundles, and every runtime in every precision of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.bundle import bundle
from models.bundle.bundle import Bundle
from models.encoder.encoder import Encoder
from models.export.export import export
from models.runtimes import RUNTIMES, available
from models.runtimes.base import Options, RuntimeUnavailable
from tests.models.runner import PLACES, Runner


@pytest.fixture(scope="session")
def opened(tiny_bundle: Path) -> Bundle:
    return bundle.load(tiny_bundle)


@pytest.fixture(scope="session")
def half_bundle(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Add a float16 graph to the bundle of `opened`."""
    folder = tmp_path_factory.mktemp("bundles") / "half"
    return export(Encoder.load(tiny_backbone, pooling="mean"), folder, name="half", backbone="tiny", fp16_graph=True)


@pytest.fixture(scope="module", params=PLACES, ids=str)
def run(request: pytest.FixtureRequest, opened: Bundle) -> Runner:
    (runtime, precision), device = place = request.param
    ours: Bundle = request.getfixturevalue("half_bundle") if precision == "fp16" else opened
    try:
        if place.pair in available(ours, Options(device), runtimes={runtime: RUNTIMES[runtime]}):
            return Runner(ours, place.pair, device)
    except RuntimeUnavailable as refusal:
        pytest.skip(str(refusal))
    pytest.skip(f"no {place} on this machine")
