"""Tests of `isosphere serve --on ray`: a replica, its scaling, and the files for Ray Serve and KubeRay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from serving.commands import loading
from serving.commands.on_ray import deployment, replica
from serving.commands.on_ray.autoscaling import QUEUED_TOKENS, TARGET_TOKENS, by_queued_tokens
from serving.commands.on_ray.replica import Application
from serving.inference.engine import EngineError
from serving.settings import Settings
from tests.clusters import free_port, small_ray
from tests.conftest import PATIENCE
from tests.serving.conftest import MakeService

pytestmark = pytest.mark.filterwarnings("ignore")
RAY = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "ray"


class Lifespan:
    """Start and end of an ASGI server."""

    def __init__(self, app: Application) -> None:
        self._app, self._told = app, asyncio.Queue[dict[str, Any]]()
        self.answers = asyncio.Queue[dict[str, Any]]()

    async def tell(self, event: str) -> dict[str, Any]:
        await self._told.put({"type": f"lifespan.{event}"})
        return await asyncio.wait_for(self.answers.get(), PATIENCE)

    async def run(self) -> None:
        await self._app({"type": "lifespan", "asgi": {"version": "3.0"}}, self._told.get, self.answers.put)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_replica_has_started_when_its_encoder_answers(make_service: MakeService) -> None:
    app = Application(make_service(store="memory"))
    lifespan = Lifespan(app)
    running = asyncio.create_task(lifespan.run())
    assert (await lifespan.tell("startup"))["type"] == "lifespan.startup.complete"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
        assert (await client.post("/embed", json={"inputs": "a cat"})).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        for path in ("/corpora", "/jobs/1", "/corpora/docs/snapshots"):
            assert (await client.get(path)).status_code == 404  # The corpus would exist only in this replica.
    assert (await lifespan.tell("shutdown"))["type"] == "lifespan.shutdown.complete"
    await running


@pytest.mark.anyio
async def test_a_replica_that_can_not_load_does_not_start(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service(store="memory")

    async def load(_: Any) -> None:
        raise EngineError("broken")

    monkeypatch.setattr(service.encoders, "load", load)
    lifespan = Lifespan(Application(service))
    running = asyncio.create_task(lifespan.run())
    answer = await lifespan.tell("startup")
    assert answer["type"] == "lifespan.startup.failed" and "broken" in answer["message"]
    await lifespan.tell("shutdown")
    await running


@pytest.mark.anyio
async def test_a_replica_loads_its_encoder_again_only_after_a_change_of_its_configuration(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, reloads = make_service(store="memory"), list[None]()

    async def reload() -> None:
        reloads.append(None)

    monkeypatch.setattr(service, "reload", reload)
    app = Application(service)
    await app.reconfigure({"promoted": 1})  # Ray Serve calls this method at the start, too.
    await app.check_health()
    await app.reconfigure({"promoted": 1})
    assert not reloads
    await app.reconfigure({"promoted": 2})
    assert len(reloads) == 1


def test_a_replica_serves_what_the_server_serves_and_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # without the default folder
    monkeypatch.setattr(loading, "as_bundle", lambda name, _: Path(f"bundle of {name}"))
    monkeypatch.setattr(replica, "opened_models", lambda settings: settings.bundles)
    monkeypatch.setattr(replica, "opened_service", lambda settings, models: (settings, models))
    monkeypatch.setattr(replica, "create_app", lambda *_, **__: ended)

    async def ended(*_: Any) -> None:
        return

    app = replica.build(Settings())
    settings, models = app.service  # type: ignore[misc]
    assert models == (Path("bundle of minilm+default"),) and settings.data.exists()  # type: ignore[has-type]
    asyncio.run(app({"type": "lifespan"}, ended, ended))  # type: ignore[arg-type]
    assert not settings.data.exists()  # type: ignore[has-type]


@pytest.mark.parametrize(
    ("tokens", "replicas"),
    [([], 1), ([0, 0], 1), ([TARGET_TOKENS], 1), ([TARGET_TOKENS + 1], 2), ([5 * TARGET_TOKENS, 0], 5)],
)
def test_replicas_follow_the_queued_tokens(tokens: list[float], replicas: int) -> None:
    metrics = {QUEUED_TOKENS: dict(enumerate(tokens))} if tokens else None
    assert by_queued_tokens(SimpleNamespace(aggregated_metrics=metrics)) == (replicas, {})  # type: ignore[arg-type]


def test_others_reach_no_replica_without_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert deployment.serve(Settings(host="0.0.0.0")) == 2
    assert "--api-keys-file" in capsys.readouterr().err


def config(file: str) -> Any:
    parsed = yaml.safe_load((RAY / file).read_text())
    return yaml.safe_load(parsed["spec"]["serveConfigV2"]) if file == "kuberay.yaml" else parsed


@pytest.mark.parametrize("file", ["serve.yaml", "kuberay.yaml"])
def test_ray_serve_accepts_the_file(file: str) -> None:
    from ray.serve.schema import ServeDeploySchema

    (application,) = ServeDeploySchema.model_validate(config(file)).applications
    module, _, name = application.import_path.partition(":")
    assert getattr(import_module(module), name) is deployment.application
    assert application.args.keys() <= Settings.model_fields.keys()
    Settings(**application.args)
    (own,) = application.deployments
    assert own.name == deployment.NAME
    module, _, name = own.autoscaling_config["policy"]["policy_function"].partition(":")  # type: ignore[index]
    assert getattr(import_module(module), name) is by_queued_tokens


def test_the_cluster_on_kubernetes_runs_the_same_replicas() -> None:
    """Compare with serve.yaml, except for the bundle, which is part of the image, and for the port.

    KubeRay serves the metrics of Ray on port 8080. Its Service and its probes expect Ray Serve on port 8000.
    """
    on_kubernetes, elsewhere = config("kuberay.yaml"), config("serve.yaml")
    assert on_kubernetes["http_options"].pop("port") == 8000
    assert elsewhere["http_options"].pop("port") == Settings().port
    (ours,), (others,) = on_kubernetes["applications"], elsewhere["applications"]
    image = (RAY.parents[2] / "Dockerfile").read_text()
    assert f"ENV ISOSPHERE_BUNDLE={ours['args'].pop('bundle')} " in image and others["args"].pop("bundle")
    assert others["deployments"][0].pop("user_config")
    assert on_kubernetes == elsewhere
    service = yaml.safe_load((RAY / "kuberay.yaml").read_text())
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["rayVersion"] == import_module("ray").__version__
    (workers,) = cluster["workerGroupSpecs"]
    # The head pod runs the autoscaler, which changes the number of workers by the API of Kubernetes.
    assert cluster["enableInTreeAutoscaling"] and workers["maxReplicas"] > workers["minReplicas"]
    assert "automountServiceAccountToken" not in cluster["headGroupSpec"]["template"]["spec"]
    assert workers["template"]["spec"]["automountServiceAccountToken"] is False
    (container,) = workers["template"]["spec"]["containers"]
    (own,) = config("serve.yaml")["applications"][0]["deployments"]
    assert int(container["resources"]["limits"]["cpu"]) >= config("serve.yaml")["applications"][0]["args"]["threads"]
    assert workers["maxReplicas"] >= own["autoscaling_config"]["max_replicas"]


@pytest.fixture(scope="module")
def replicas(tiny_bundle: Path) -> Iterator[str]:
    """Yield the address of a replica on Ray with a short queue."""
    from ray import serve

    with small_ray():
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        options = {
            "bundle": str(tiny_bundle),
            "engine": "onnxruntime",
            "precision": "fp32",
            "threads": 1,
            "max_queued_tokens": 2000,
            "max_request_tokens": 2000,
        }
        serve.run(deployment.application(options), name=deployment.NAME, route_prefix="/")
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_a_replica_answers_as_the_server(replicas: str, tiny_bundle: Path) -> None:
    from isosphere.encoder import load

    with httpx.Client(base_url=replicas, timeout=PATIENCE) as client:
        answer = client.post("/embed", json={"inputs": ["a cat", "the dog"]})
        assert answer.status_code == 200, answer.text
        expected = load(tiny_bundle, engine="onnxruntime", precision="fp32", threads=1).encode(["a cat", "the dog"])
        assert abs(expected - answer.json()).max() < 1e-5
        assert client.get("/readyz").status_code == 200
        assert client.post("/v1/embeddings", json={"input": "a", "model": "x"}).json()["object"] == "list"
        refused = client.post("/embed", json={"inputs": 7})
        assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_full_queue_answers_429_with_the_time_to_wait(replicas: str) -> None:
    texts = ["a cat can sleep and the dog can play " * 8] * 28
    async with httpx.AsyncClient(base_url=replicas, timeout=PATIENCE) as client:
        answers = await asyncio.gather(*(client.post("/embed", json={"inputs": texts}) for _ in range(24)))
    assert {answer.status_code for answer in answers} == {200, 429}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)
