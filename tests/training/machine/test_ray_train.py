"""Tests of docs/deploy/ray/train.py and train.yaml: training by Ray Train, on this machine and on Kubernetes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.clusters import CALM, small_ray
from tests.conftest import PATIENCE
from training.checkpoints.record import METRICS
from training.cli.options import parse
from training.cli.train import resolve
from training.config import RunConfig

pytestmark = pytest.mark.filterwarnings("ignore")
RAY = Path(__file__).resolve().parents[3] / "docs" / "deploy" / "ray"
CLAIM, SCRIPTS, JOB = yaml.safe_load_all((RAY / "train.yaml").read_text())
PODS = [
    group["template"]
    for group in (JOB["spec"]["rayClusterSpec"]["headGroupSpec"], *JOB["spec"]["rayClusterSpec"]["workerGroupSpecs"])
]


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("thing", [CLAIM, SCRIPTS, *PODS], ids=["claim", "scripts", "head", "workers"])
def test_kubernetes_takes_the_parts_that_are_its_own(thing: dict[str, Any], version: str) -> None:
    """Validate the pod templates, which KubeRay puts into pods."""
    whole = thing if "kind" in thing else {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **thing}
    assert kubernetes_validate.validate(whole, version, strict=True) == version


def test_the_job_starts_the_script_with_a_worker_for_each_gpu() -> None:
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert SCRIPTS["data"] == {"train.py": (RAY / "train.py").read_text()}
    cluster = JOB["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == import_module("ray").__version__
    (workers,) = cluster["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    python, script, count, *arguments = shlex.split(JOB["spec"]["entrypoint"])
    assert (python, script) == ("python", "/scripts/train.py")
    assert int(count) == workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    config = resolve(parse(["train", *arguments]))
    assert all(path.startswith("/shared/") for path in (config.run, config.out, *config.corpus))


@pytest.mark.slow
def test_the_script_trains_with_two_workers(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = make_config(batch_size=15)
    (tmp_path / "config.json").write_text(config.to_json())
    command = [sys.executable, str(RAY / "train.py"), "2", "--config", str(tmp_path / "config.json")]
    with small_ray():
        import ray

        address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--set", f"run={config.run}", "--out", config.out],
            env=os.environ | CALM | address,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (Path(config.run) / METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 15))
    assert json.loads((Path(config.run) / "environment.json").read_text())["processes"] == 2
    assert (Path(config.out) / "manifest.json").exists()
