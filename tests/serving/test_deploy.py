"""Tests of docs/deploy.md and its files, with the tools that read them and with the server."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.commands import server
from serving.commands.keys import keys as keys_command
from serving.jobs.adapting import GRACE_SECONDS
from serving.operations.keys import changed_keys, read_keys
from serving.operations.metrics import Metrics
from serving.service import Service
from serving.settings import Settings, read_settings
from tests.conftest import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
UNIT = DEPLOY / "isosphere.service"
COMPOSE = [DEPLOY / "compose.yaml", DEPLOY / "compose.gpu.yaml", DEPLOY / "compose.milvus.yaml"]
TEXTS = [
    ROOT / "Dockerfile",
    ROOT / "docs" / "deploy.md",
    *(path for path in sorted(DEPLOY.rglob("*")) if path.is_file()),
]
OBJECTS = [thing for path in sorted(DEPLOY.glob("kubernetes/*.yaml")) for thing in yaml.safe_load_all(path.read_text())]
WORKLOADS = [one for one in OBJECTS if one["kind"] in ("Deployment", "StatefulSet")]
BIN = Path(sys.executable).parent
LAST_ANSWERS = 2 * server.SECONDS_TO_ASK + server.SECONDS_TO_SEND


def named(thing: dict[str, Any]) -> str:
    return f"{thing['kind']}-{thing['metadata']['name']}"


def pod(workload: dict[str, Any]) -> Any:
    return workload["spec"]["template"]["spec"]


def environment(place: str) -> dict[str, str]:
    """Return the environment variables of the server in a deployment."""
    if place == "Dockerfile":
        lines = re.findall(r"^ENV (.*)", (ROOT / place).read_text(), re.MULTILINE)
        return dict(pair.split("=", 1) for line in lines for pair in shlex.split(line))
    if place == "compose":
        return dict(yaml.safe_load(COMPOSE[0].read_text())["services"]["server"]["environment"])
    if place == "systemd":
        return dict(pair.split("=", 1) for pair in re.findall(r"^Environment=(.*)", UNIT.read_text(), re.MULTILINE))
    (workload,) = (one for one in WORKLOADS if named(one) == place)
    return {one["name"]: one["value"] for one in pod(workload)["containers"][0]["env"]}


PLACES = ["Dockerfile", "compose", "systemd", *map(named, WORKLOADS)]


def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("thing", OBJECTS, ids=named)
def test_kubernetes_takes_the_manifests(thing: dict[str, Any], version: str) -> None:
    """Validate against the API's schemas, without unknown fields. 1.30 is the oldest version with sleep hooks."""
    assert kubernetes_validate.validate(thing, version, strict=True) == version


def test_kubernetes_would_not_take_a_slip() -> None:
    slip = {**WORKLOADS[0], "spec": {**WORKLOADS[0]["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(slip, "1.37", strict=True)


def test_compose_takes_its_files() -> None:
    checked = ran(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *COMPOSE)
    assert checked.returncode == 0, checked.stdout


def test_hadolint_has_nothing_to_say_of_the_dockerfile() -> None:
    linted = ran(BIN / "hadolint", "--no-color", "Dockerfile")
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze comes with systemd, which is not here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text(), flags=re.MULTILINE))
    verified = ran("systemd-analyze", "verify", "--man=no", unit)
    assert verified.returncode == 0 and UNIT.name not in verified.stderr, verified.stderr


def test_every_variable_is_an_option() -> None:
    options = {f"ISOSPHERE_{name.upper()}" for name in Settings.model_fields}
    for path in TEXTS:
        found = set(re.findall(r"\bISOSPHERE_[A-Z_]*[A-Z]", path.read_text()))
        assert found <= options, path
    assert all(any(name.startswith("ISOSPHERE_") for name in environment(place)) for place in PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_every_value_is_legal(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(place).items():
        monkeypatch.setenv(name, value)
    settings = read_settings([])
    assert not settings.insecure
    assert settings.api_keys_file or place == "Dockerfile", "an image that is given no keys does not start"


def test_every_metric_is_measured() -> None:
    measured = Metrics().text().decode()
    for path in TEXTS:
        for name in re.findall(r"\b(?:isosphere|te)_[a-z_]+[a-z]", path.read_text()):
            assert re.search(rf"^{name}[ {{]", measured, re.MULTILINE), f"{path}: {name}"


@pytest.fixture
def keyed(make_service: Any, tmp_path: Path, wait_until_ready: Any) -> Iterator[TestClient]:
    with changed_keys(tmp_path / "keys.json"):
        pass
    service: Service = make_service(api_keys_file=tmp_path / "keys.json")
    with TestClient(create_app(service)) as client:
        wait_until_ready(client)
        yield client


def test_probes_and_scrapes_are_answered_without_a_key(keyed: TestClient) -> None:
    paths = {workload["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"] for workload in WORKLOADS}
    for workload in WORKLOADS:
        (container,) = pod(workload)["containers"]
        probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
        assert probes["readiness"]["path"] == "/readyz" and probes["liveness"]["path"] == "/livez"
        assert {probe["port"] for probe in probes.values()} == {"http"}
        paths |= {probe["path"] for probe in probes.values()}
    paths |= set(re.findall(r"'(/\w+)', timeout=", (ROOT / "Dockerfile").read_text()))
    for path in paths:
        assert keyed.get(path).status_code == 200, path
    assert keyed.get("/info").status_code == 401


def test_a_conversion_of_the_corpora_may_take_an_hour() -> None:
    """The server listens after it has converted the corpora. A conversion that is interrupted begins again."""
    (store,) = (one for one in WORKLOADS if "volumeClaimTemplates" in one["spec"])
    probe = pod(store)["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600


def test_everything_meets_at_the_port_that_the_image_serves() -> None:
    port = environment("Dockerfile")["ISOSPHERE_PORT"]
    assert set(re.findall(r"^EXPOSE (\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)) == {port}
    for workload in WORKLOADS:
        assert pod(workload)["containers"][0]["ports"] == [{"name": "http", "containerPort": int(port)}]
        assert workload["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == port
    for service in (one for one in OBJECTS if one["kind"] == "Service"):
        assert [one["targetPort"] for one in service["spec"]["ports"]] == ["http"]
        assert any(service["spec"]["selector"] == one["spec"]["selector"]["matchLabels"] for one in WORKLOADS)
    (published,) = yaml.safe_load(COMPOSE[0].read_text())["services"]["server"]["ports"]
    assert published.split(":")[-1] == port


def test_nobody_is_killed_before_the_drain_is_over() -> None:
    needed = GRACE_SECONDS + Settings().drain_seconds + LAST_ANSWERS
    for workload in WORKLOADS:
        waits = pod(workload)["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pod(workload)["terminationGracePeriodSeconds"] >= waits + needed
    composed = yaml.safe_load(COMPOSE[0].read_text())["services"]["server"]["stop_grace_period"]
    (unit,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert min(int(composed.removesuffix("s")), int(unit)) >= needed


@pytest.mark.parametrize("workload", WORKLOADS, ids=named)
def test_a_data_folder_has_one_writer(workload: dict[str, Any]) -> None:
    """Check that stores have one pod without an autoscaler, and that scaled pods have no store."""
    scaled = [one["spec"]["scaleTargetRef"]["name"] for one in OBJECTS if one["kind"] == "HorizontalPodAutoscaler"]
    kept = workload["spec"].get("volumeClaimTemplates", [])
    assert not any("persistentVolumeClaim" in volume for volume in pod(workload)["volumes"])
    if workload["metadata"]["name"] in scaled:
        assert not kept and environment(named(workload))["ISOSPHERE_STORE"] == "memory"
    else:
        assert workload["spec"]["replicas"] == 1
        assert [claim["spec"]["accessModes"] for claim in kept] == [["ReadWriteOncePod"]]


@pytest.mark.parametrize("workload", WORKLOADS, ids=named)
def test_pods_are_as_the_restricted_standard_wants_them(workload: dict[str, Any]) -> None:
    """Check https://kubernetes.io/docs/concepts/security/pod-security-standards/, and a read-only root."""
    (container,) = pod(workload)["containers"]
    (user,) = set(re.findall(r"^USER (\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    both, own = pod(workload)["securityContext"], container["securityContext"]
    assert both["runAsNonRoot"] and both["runAsUser"] == both["fsGroup"] == int(user)
    assert both["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/data", "/tmp"}
    assert pod(workload)["enableServiceLinks"] is False, "they are variables, and might be taken for options"


@pytest.mark.parametrize("workload", WORKLOADS, ids=named)
def test_keys_come_from_a_secret_that_the_user_of_the_image_may_read(workload: dict[str, Any]) -> None:
    file = Path(environment(named(workload))["ISOSPHERE_API_KEYS_FILE"])
    (mount,) = (one for one in pod(workload)["containers"][0]["volumeMounts"] if one["mountPath"] == str(file.parent))
    (volume,) = (one for one in pod(workload)["volumes"] if one["name"] == mount["name"])
    assert volume["secret"]["defaultMode"] == 0o440 and "subPath" not in mount, "a subPath never changes"
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert f"create secret generic {volume['secret']['secretName']} --from-file={file.name}=" in page


def test_every_command_about_keys_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [one for path in TEXTS for one in re.findall(r"\bkeys (add [^\n#`>]*)", path.read_text())]
    assert len(commands) >= 4
    for i, command in enumerate(commands):
        file = tmp_path / f"{i}.json"
        given = re.sub(r"\s--api-keys-file\s.*", "", command)
        assert keys_command([*shlex.split(given), "--api-keys-file", str(file)]) == 0, capsys.readouterr().err
        assert len(read_keys(file)) == 1
