"""Tests of opening the bundles and loading the first encoder in the background."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from models.bundle.bundle import BundleError
from serving.__main__ import INTERRUPTED, run
from serving.commands.loading import begin
from serving.inference import fake_engine
from serving.inference.engine import Engine, EngineError, EngineOptions, Model
from serving.inference.engines import ENGINES
from serving.settings import Settings
from tests.conftest import PATIENCE


class Loads:
    """Engines that are loaded when `allowed` is set, or fail with `error`."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.error: Exception | None = None
        self.loaded: list[str] = []

    def open(self, folder: Path) -> Model:
        def load(_: EngineOptions) -> Engine:
            assert self.allowed.wait(PATIENCE)
            self.loaded.append(folder.name)
            if self.error:
                raise self.error
            return fake_engine.FakeEngine()

        return replace(fake_engine.open_bundle(folder), load=load)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loads]:
    made = Loads()
    monkeypatch.setitem(ENGINES, "fake", made.open)
    monkeypatch.setattr("serving.operations.logs.configure", lambda _: None)
    yield made
    made.allowed.set()


@pytest.fixture
def settings(tiny_bundle: Path, tmp_path: Path) -> Settings:
    return Settings(bundle=f"{tiny_bundle}:{tiny_bundle}", data=tmp_path, engine="fake")


def test_the_models_are_there_before_the_first_encoder_is_loaded(loads: Loads, settings: Settings) -> None:
    own, (first, other) = begin(settings).result(PATIENCE)
    assert (own.bundles, loads.loaded) == (settings.bundles, [])
    loads.allowed.set()
    options = EngineOptions.of(settings)
    engine = first.load(options)
    assert len(loads.loaded) == 1, "the other model waits until the server loads it"
    other.load(options)
    assert len(loads.loaded) == 2
    alive = weakref.ref(engine)
    del engine
    gc.collect()
    assert alive() is None, "a reload must free the memory of the engine that it replaces"


def test_an_encoder_that_does_not_load_fails_when_the_server_asks_for_it(loads: Loads, settings: Settings) -> None:
    loads.error = EngineError("no memory")
    loads.allowed.set()
    _, (first, _) = begin(settings).result(PATIENCE)
    with pytest.raises(EngineError, match="no memory"):
        first.load(EngineOptions.of(settings))


@pytest.mark.usefixtures("loads")
def test_a_folder_without_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json: missing"):
        begin(Settings(bundle=str(tmp_path), data=tmp_path / "data")).result(PATIENCE)


def test_ctrl_c_during_the_early_load_is_an_exit_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`leave` can then end the process while native code still loads the encoder."""
    monkeypatch.setattr("serving.commands.loading.begin", Mock(side_effect=KeyboardInterrupt))
    assert run(["--engine", "fake", "--data", str(tmp_path)]) == INTERRUPTED
    assert gc.isenabled()
