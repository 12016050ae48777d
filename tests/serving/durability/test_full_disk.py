"""A disk without a free byte: the server starts, what is there is read, documents are removed, and it recovers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from tests.serving.conftest import ROOT

ON_A_SMALL_DISK = ("unshare", "--map-root-user", "--mount")
SCRIPT = """
import json, shutil, subprocess, sys
from contextlib import suppress
from pathlib import Path
from fastapi.testclient import TestClient
from serving.app import create_app
from serving.settings import Settings
from serving.commands.loading import opened_models
from serving.commands.starting import opened_service
from serving.corpora.ports import RESERVED_BYTES
from tests.serving.conftest import _wait_until_ready

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], check=True)
settings, ballast, said = Settings(data=disk / "data", no_demo=True, engine="fake"), disk / "ballast", {}

def fill(left=0):
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while shutil.disk_usage(disk).free > left:
            file.write(bytes(1 << 12))

def add(*ids):
    documents = [{"id": id, "text": f"text {id} " * 200} for id in ids]
    return client.post("/corpora/c/documents", json={"documents": documents}).status_code

def found():
    answer = client.post("/corpora/c/search", json={"query": "text", "k": 100, "mode": "hybrid"})
    return [answer.status_code, len(answer.json()["hits"])]

def server():
    return TestClient(create_app(opened_service(settings, opened_models(settings))))

with server() as client:
    _wait_until_ready(client)
    client.put("/corpora/c")
    said["added"] = add(*map(str, range(50)))
    fill(RESERVED_BYTES - 1)
    said["not added by the last bytes"] = add("new")
    said["removed by the last bytes"] = client.delete("/corpora/c/documents/0").status_code
with server() as client:
    fill()
    _wait_until_ready(client)
    said["found"] = found()
    said["jobs"] = client.get("/jobs").status_code
    said["not added"] = add("new")
    said["not created"] = client.put("/corpora/d").status_code
    said["no snapshot"] = client.post("/corpora/c/snapshots").status_code
    ballast.unlink()
    said["added with room"] = add("new")
    said["snapshot with room"] = client.post("/corpora/c/snapshots").status_code
print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_server_starts_on_a_full_disk_and_recovers(tmp_path: Path) -> None:
    command = [*ON_A_SMALL_DISK, sys.executable, "-c", SCRIPT, str(tmp_path)]
    try:
        subprocess.run([*ON_A_SMALL_DISK, "mount", "-t", "tmpfs", "none", tmp_path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"this user may mount no disk here ({' '.join(ON_A_SMALL_DISK)})")
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said == {
        "added": 200,
        "not added by the last bytes": 507,
        "removed by the last bytes": 204,
        "found": [200, 49],
        "jobs": 200,
        "not added": 507,
        "not created": 507,
        "no snapshot": 507,
        "added with room": 200,
        "snapshot with room": 202,
    }
