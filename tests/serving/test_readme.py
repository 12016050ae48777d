"""The README's requests, sent as they are printed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[2] / "README.md"


def test_every_request_of_the_readme_is_answered(launch: Callable[..., Any]) -> None:
    server = launch()
    server.client.put("/corpora/python-docs").raise_for_status()
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL) if "curl" in block]
    requests = [request for block in blocks for request in re.split(r"^(?=curl)", block, flags=re.MULTILINE) if request]
    assert len(requests) == 7
    answers = []
    for request in requests:
        command = request.replace("http://127.0.0.1:8080", server.address).replace(
            "curl -s", "curl -s --fail-with-body"
        )
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (request, ran.stdout, ran.stderr)
        answers.append(json.loads(ran.stdout))
    embedded, similar, searched, created, added, more, found = answers
    assert len(embedded) == 2
    assert len(similar) == 2
    assert searched["hits"] == []
    assert created["name"] == "notes"
    assert added == {"ids": ["1"], "count": 1}
    assert more["count"] == 2
    assert [hit["id"] for hit in found["hits"]] == ["1"]
