"""Bundles for servers with several models, in folders that a test fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi.testclient import TestClient

from models.bundle.bundle import BundleError
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.engine import Model
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from serving.settings import Settings

if TYPE_CHECKING:
    from tests.serving.conftest import Bundles


@dataclass
class Shelf:
    """Folders of bundles by name. At first, these are `fake` (fingerprint fake-1) and `turned` (fake-2)."""

    folder: Path
    bundles: Bundles
    holds: dict[str, Callable[[], Model]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.holds = {"fake": lambda: self.bundles.fake, "turned": self.bundles.turned}

    def open(self, folder: Path) -> Model:
        if folder.name not in self.holds:
            raise BundleError(f"{folder / 'manifest.json'}: no such file")
        return self.holds[folder.name]()

    def service(self, *names: str, **options: Any) -> Service:
        bundle = ":".join(str(self.folder / name) for name in names)
        settings = Settings(bundle=bundle, data=self.folder, no_demo=True, engine="fake", **options)
        model, *others = [self.open(folder) for folder in settings.bundles]
        return Service(settings, model, local_corpora(settings, STORES["memory"](self.folder)), others=others)

    def named(self, name: str, fingerprint: str) -> Callable[[], Model]:
        return lambda: self.bundles.turned(name=name, fingerprint=fingerprint)


def models(client: TestClient) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


def fingerprints(client: TestClient) -> dict[str, str]:
    return {name: client.get("/info", params={"model": name}).json()["fingerprint"] for name in models(client)}


def embedded(*texts: str) -> Any:
    engine = FakeEngine()
    return engine.embed(engine.tokenize(texts, "right")).vectors
