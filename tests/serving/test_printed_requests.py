"""Tests that send the requests of the README, of docs/corpora.md and of the search tutorial as printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.conftest import ROOT, Running

Launch = Callable[..., Running]


def blocks(page: str) -> list[str]:
    """Return the shell blocks of a page that send requests to the server."""
    found = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [block for block in found if "curl" in block]


def sent(server: Running, block: str, folder: Path, **variables: str) -> list[str]:
    """Run a block in its shell, and return the answer of each request."""
    answers = []
    for part in re.split(r"^(?=curl|printf)", block, flags=re.MULTILINE):
        command = part.replace("http://127.0.0.1:8080", server.address).replace("curl -s", "curl --fail-with-body -s")
        environment = {**os.environ, **variables}
        ran = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, (part, ran.stdout, ran.stderr)
        answers += [ran.stdout] if part.startswith("curl") else []
    return answers


def succeeds(server: Running, accepted: str) -> None:
    """Check that the job of an answer succeeds."""
    events = server.client.get(f"/jobs/{json.loads(accepted)['id']}/events").text
    assert '"succeeded"' in events.splitlines()[-2], events


def test_every_request_of_the_readme_is_answered(launch: Launch, tmp_path: Path) -> None:
    server = launch()
    server.client.put("/corpora/python-docs").raise_for_status()
    answers = [json.loads(answer) for block in blocks("README.md") for answer in sent(server, block, tmp_path)]
    embedded, similar, searched, created, added, found = answers
    assert len(embedded) == 2
    assert len(similar) == 2
    assert searched["hits"] == []
    assert created["name"] == "notes"
    assert added == {"ids": ["1"], "count": 1}
    assert [hit["id"] for hit in found["hits"]] == ["1"]


def check_lists_times_and_places(server: Running, listing: str, expiring: str, places: str, tmp_path: Path) -> None:
    """Run these examples, which leave the corpus unchanged."""
    (newest,) = map(json.loads, sent(server, listing, tmp_path))
    assert [one["id"] for one in newest["documents"]] == ["1"] and newest["cursor"]
    _, moved, kept = map(json.loads, sent(server, expiring, tmp_path))
    assert (moved["expires_at"], "expires_at" in kept) == ("2999-02-28T07:30:00Z", False)
    _, near, ordered = map(json.loads, sent(server, places, tmp_path))
    assert [hit["id"] for hit in near["hits"]] == ["vienna"]
    assert [hit["id"] for hit in ordered["hits"]] == ["vienna", "munich"]
    server.client.request(
        "DELETE", "/corpora/notes/documents", json={"filter": {"$id": {"$in": ["offer", "munich", "vienna"]}}}
    ).raise_for_status()


@pytest.mark.slow
def test_every_request_about_corpora_is_answered(launch: Launch, tmp_path: Path) -> None:
    server = launch()
    first, jobs, like, arranged, several, reranking, *later = blocks("docs/corpora.md")
    listing, sorted_list, patches, words, expiring, places, own, names, snapshots, *_ = later
    created, added, listed, found = map(json.loads, sent(server, first, tmp_path))
    assert created["recall_target"] == 0.97
    assert added == {"ids": ["1", "2"], "count": 2}
    assert listed["jobs"] == []
    assert [hit["id"] for hit in found["hits"]] == ["1"] and found["hits"][0]["metadata"] == {"year": 2021}

    upload = server.client.post("/corpora/notes/documents?async=true", json={"documents": [{"text": "one more"}]})
    shown, events, cancelled = sent(server, jobs, tmp_path, JOB=upload.json()["id"])
    assert json.loads(shown)["id"] == upload.json()["id"]
    assert events.startswith("event: ") and '"succeeded"' in events.splitlines()[-2]
    assert json.loads(cancelled)["state"] == "succeeded"

    (resembling,) = map(json.loads, sent(server, like, tmp_path))
    assert {hit["id"] for hit in resembling["hits"]}.isdisjoint({"1", "2"}) and len(resembling["hits"]) == 1
    grouped, ordered = map(json.loads, sent(server, arranged, tmp_path))
    assert all(hit["group"] == hit["id"] for hit in grouped["hits"])
    assert [hit["metadata"].get("year") for hit in ordered["hits"]] == [2021, 2019, None]
    assert (ordered["total"], ordered["facets"]) == (3, {"room": []})
    server.client.put("/corpora/python-docs").raise_for_status()
    together, by_url = map(json.loads, sent(server, several, tmp_path))
    assert {hit["corpus"] for hit in together["hits"]} == {"notes"} and len(by_url["hits"]) == 3

    (reranked,) = map(json.loads, sent(server, reranking, tmp_path))
    assert {hit["id"] for hit in reranked["hits"]} >= {"1", "2"} and reranked["cursor"] is None

    page, counted = map(json.loads, sent(server, listing, tmp_path))
    assert ([one["id"] for one in page["documents"]], page["count"]) == (["1"], 1)
    assert counted == {"documents": [], "cursor": None, "count": 2}

    patched, archived = map(json.loads, sent(server, patches, tmp_path))
    assert patched["metadata"] == {"year": 2021, "reviewed": True}
    assert archived == {"patched": 1}

    *_, misspelt, begun = map(json.loads, sent(server, words, tmp_path))
    (film,) = misspelt["hits"]
    assert [film["text"][one["start"] : one["end"]] for one in film["highlights"]] == ["motion picture"]
    assert film["field_highlights"] == [
        {"field": "title", "text": "The Captain", "highlights": [{"start": 4, "end": 11}]}
    ]
    assert [(hit["id"], hit["lexical"] is not None) for hit in begun["hits"]] == [("2", True)]

    check_lists_times_and_places(server, sorted_list, expiring, places, tmp_path)

    *_, by_vector, by_both = map(json.loads, sent(server, own, tmp_path))
    assert [(hit["id"], hit["score"]) for hit in by_vector["hits"]] == [("1", pytest.approx(0.989949, abs=1e-5))]
    assert {hit["id"]: hit["lexical"] is not None for hit in by_both["hits"]} == {"1": False, "2": True}
    alias, there, renamed, aliases = map(json.loads, sent(server, names, tmp_path))
    assert (alias["corpus"], there["text"], renamed["name"]) == ("pictures", "a red barn", "paintings")
    assert aliases == {"aliases": [{"alias": "gallery", "corpus": "paintings"}]}

    *made, restoring = re.split(r"^(?=curl)", snapshots, flags=re.MULTILINE)[1:]
    succeeds(server, *sent(server, made[0], tmp_path))
    (there,) = sent(server, made[1], tmp_path)
    (snapshot,) = json.loads(there)["snapshots"]
    *_, restored = sent(server, "".join(made[2:]), tmp_path, ID=snapshot["id"])
    succeeds(server, restored)
    succeeds(server, *sent(server, restoring, tmp_path, ID=snapshot["id"]))
    assert server.client.get("/corpora/copy").json()["documents"] == 3


@pytest.mark.slow
def test_every_request_about_maps_is_answered(launch: Launch, tmp_path: Path) -> None:
    server = launch()
    created, *_, maps = blocks("docs/corpora.md")
    sent(server, created, tmp_path)
    mapping, mapped = sent(server, maps, tmp_path)
    succeeds(server, mapping)
    assert sorted(point["value"] for point in json.loads(mapped)["points"]) == [2019, 2021]
    assert server.client.get("/corpora/notes/map").json()["stored"]["current"]


@pytest.mark.slow
def test_the_tutorial_about_search_finds_the_files(launch: Launch, tmp_path: Path) -> None:
    server = launch()
    (tmp_path / "docs" / "adr").mkdir(parents=True)
    for name in ("log.md", "adr/0001.md"):
        (tmp_path / "docs" / name).write_text(f"The text of {name} tells of golden vectors at export.")
    _, collecting, *asking = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/tutorials/search.md").read_text(), re.DOTALL)
    subprocess.run(["bash", "-c", collecting], cwd=tmp_path, check=True)
    created, accepted = sent(server, asking[0], tmp_path)
    assert json.loads(created)["name"] == "files"
    succeeds(server, accepted)
    listed, both, filtered, deleted = [json.loads(one) for block in asking[1:] for one in sent(server, block, tmp_path)]
    assert [job["state"] for job in listed["jobs"]] == ["succeeded"]
    assert {hit["id"] for hit in both["hits"]} == {"docs/log.md", "docs/adr/0001.md"}
    assert [hit["id"] for hit in filtered["hits"]] == ["docs/adr/0001.md"]
    assert deleted == {"deleted": 1}
