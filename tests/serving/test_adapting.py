"""Tests of jobs that adapt an encoder to the texts of a corpus, over HTTP."""

from __future__ import annotations

import fcntl
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.inference.engines import ENGINES
from serving.jobs.adapting import MOST_KEPT, MOST_TITLE_CHARACTERS, NICE, Adaptations, locked
from tests.conftest import PATIENCE, WORDS
from tests.serving.conftest import Launcher, MakeService, Running
from tests.serving.durability.server import serving
from tests.serving.test_auth import BEARER, bearer, keys_in
from tests.serving.test_moving_corpora import ended

ADAPTS = """
import json, os, pathlib, sys
options = dict(zip(sys.argv[3::2], sys.argv[4::2]))
rows = [json.loads(line) for line in pathlib.Path(sys.argv[2]).read_text().splitlines()]
print("step 1/2: loss 0.1", file=sys.stderr)
print("step 2/2: loss 0.1", file=sys.stderr)
made = pathlib.Path(options["--out"])
made.mkdir()
given = {"options": options, "rows": rows, "resume": "--resume" in sys.argv, "nice": os.nice(0)}
given |= {"oom": pathlib.Path("/proc/self/oom_score_adj").read_text().strip(), "variables": sorted(os.environ)}
(made / "given.json").write_text(json.dumps(given))
encoders = [{"stage": "start", "encoder": options["--backbone"], "ndcg10": 30.0}]
encoders += [{"stage": "whitened", "encoder": str(made), "ndcg10": 34.0, "gain": 4.0, "low": 1.0, "high": 7.0}]
report = {"queries": 9, "passages": 90, "encoders": encoders, "best": BEST, "examples": []}
pathlib.Path(options["--json"]).write_text(json.dumps(report))
"""
WAITS = """
import pathlib, signal, sys, time
run = pathlib.Path("runs") / (sys.argv[sys.argv.index("--out") + 1] + "-trained")
run.mkdir(parents=True, exist_ok=True)
(run / "config.json").touch()
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("../../../ended").touch(), sys.exit(130)))
while True:
    print("step 3/9: loss 0.1", flush=True)
    time.sleep(0.05)
"""
Stub = Callable[[str], None]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Replace the program `isosphere adapt` by a script."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("serving.jobs.adapting.MODULE", "stub")
    monkeypatch.setattr("serving.jobs.adapting.find_spec", lambda _: True)
    monkeypatch.setattr("serving.jobs.kinds.PROGRESS_SECONDS", 0.05)

    def write(script: str) -> None:
        (tmp_path / "stub.py").write_text(script)

    return write


@pytest.fixture
def server(
    make_service: MakeService, wait_until_ready: Callable[[TestClient], None], stub: Stub
) -> Iterator[TestClient]:
    stub(ADAPTS.replace("BEST", '"whitened"'))
    with TestClient(create_app(make_service())) as client:
        wait_until_ready(client)
        fill(client)
        yield client


def fill(client: TestClient | httpx.Client, corpus: str = "c", count: int = 3) -> None:
    documents = [
        {"id": f"d{i}", "text": f"River {i} is long. It ends.", "metadata": {"title": f"River {i}"} if i else {}}
        for i in range(count)
    ]
    client.put(f"/corpora/{corpus}").raise_for_status()
    client.post(f"/corpora/{corpus}/documents", json={"documents": documents}).raise_for_status()


def test_the_better_encoder_is_kept_and_the_result_says_how_to_serve_it(
    server: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    job = ended(server, server.post("/corpora/c/adapt", json={"max_steps": 7}))
    assert (job["state"], job["kind"], job["done"], job["total"]) == ("succeeded", "adapt", 2, 2), job
    result = job["result"]
    name = f"c-{job['id'][:8]}"
    bundle = tmp_path / "adapted" / "c" / name
    assert (result["start"], result["model"], result["bundle"]) == ("fake", name, str(bundle))
    assert [one["stage"] for one in result["encoders"]] == ["start", "whitened"]
    assert result["encoders"][1] == {"stage": "whitened", "ndcg10": 34.0, "gain": 4.0, "low": 1.0, "high": 7.0}
    assert result["next"] == [
        {"method": "POST", "path": "/admin/models", "body": {"bundle": str(bundle)}},
        {"method": "POST", "path": "/corpora/c/reembed", "body": {"model": name}},
    ]
    given = json.loads((bundle / "given.json").read_text())
    assert given["rows"] == [
        {"text": "River 0 is long. It ends."},
        {"title": "River 1", "text": "River 1 is long. It ends."},
        {"title": "River 2", "text": "River 2 is long. It ends."},
    ]
    assert given["options"]["--max-steps"] == "7"
    assert (given["nice"], given["oom"]) == (min(os.nice(0) + NICE, 19), "1000")
    assert "SECRET" not in given["variables"]
    assert not list((tmp_path / "adapting").rglob("*.jsonl")), "the texts are gone"


def test_passages_are_trained_on_where_documents_were_split(server: TestClient, tmp_path: Path) -> None:
    text = "River one is long. It ends in the sea. " * 40
    document = {"id": "long", "text": text, "metadata": {"title": "Rivers" * 1000}}
    server.put("/corpora/split")
    server.post("/corpora/split/documents", params={"chunk_tokens": 32}, json={"documents": [document]})
    passages = server.get("/corpora/split").json()["passages"]
    bundle = ended(server, server.post("/corpora/split/adapt"))["result"]["bundle"]
    rows = json.loads((Path(bundle) / "given.json").read_text())["rows"]
    assert len(rows) == passages > 1
    assert all(row["title"] == ("Rivers" * 1000)[:MOST_TITLE_CHARACTERS] and row["text"] in text for row in rows)


def test_every_nth_passage_of_a_large_corpus_is_trained_on(server: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.jobs.adapting.MOST_PASSAGES", 3)
    fill(server, "large", 8)
    bundle = ended(server, server.post("/corpora/large/adapt"))["result"]["bundle"]
    rows = json.loads((Path(bundle) / "given.json").read_text())["rows"]
    assert [row["text"][:7] for row in rows] == ["River 0", "River 3", "River 6"]


def test_nothing_is_kept_where_nothing_is_better(server: TestClient, stub: Stub, tmp_path: Path) -> None:
    stub(ADAPTS.replace("BEST", "None"))
    result = ended(server, server.post("/corpora/c/adapt"))["result"]
    assert (result["best"], result["model"], result["bundle"], result["next"]) == (None, None, None, [])
    assert not list((tmp_path / "adapted").rglob("*.json"))
    assert not list((tmp_path / "adapting").glob("*/*"))


def test_a_cancelled_job_ends_its_process_and_another_waits_for_it(
    server: TestClient, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[float] = []
    monkeypatch.setattr("serving.operations.child_process.spend", charged.append)
    stub(WAITS)
    fill(server, "other")
    job = server.post("/corpora/c/adapt").headers["location"]
    wait(lambda: server.get(job).json()["done"] == 3)
    again = server.post("/corpora/c/adapt")
    assert (again.status_code, again.headers["location"]) == (409, job)
    other = server.post("/corpora/other/adapt").headers["location"]
    server.post("/corpora/c/documents", json={"documents": [{"text": "meanwhile"}]}).raise_for_status()
    assert server.get(other).json()["state"] == "queued"
    assert server.delete(job).json()["state"] == "cancelled"
    assert (tmp_path / "ended").exists(), "it was asked to end"
    assert charged and charged[0] > 0
    wait(lambda: server.get(other).json()["state"] == "running")
    assert not list((tmp_path / "adapting" / "c").iterdir())
    assert server.delete(other).json()["state"] == "cancelled"


def test_a_deleted_corpus_leaves_no_texts(server: TestClient, stub: Stub, tmp_path: Path) -> None:
    stub(WAITS)
    job = server.post("/corpora/c/adapt").headers["location"]
    wait(lambda: server.get(job).json()["done"] == 3)
    server.delete("/corpora/c").raise_for_status()
    assert server.get(job).json()["state"] == "cancelled"
    assert not list((tmp_path / "adapting" / "c").iterdir())


def wait(come: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not come():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "print('isosphere: c.jsonl: contains single sentences'); raise SystemExit(2)",
            "c.jsonl: contains single sentences",
        ),
        ("print('isosphere: the disk is full'); raise SystemExit(1)", "failed: the disk is full"),
        ("raise RuntimeError('odd')", "failed: RuntimeError: odd"),
        ("raise SystemExit(3)", "failed: exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", "more memory"),
    ],
)
def test_a_process_that_fails_says_why_in_one_line(server: TestClient, stub: Stub, script: str, says: str) -> None:
    stub(script)
    job = ended(server, server.post("/corpora/c/adapt"))
    (error,) = job["errors"]
    assert job["state"] == "failed" and says in error["error"] and "\n" not in error["error"]


def test_what_can_t_be_adapted_is_refused(server: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, status: int, says: str, **body: Any) -> None:
        answer = server.post(path, json=body)
        assert answer.status_code == status and says in answer.json()["error"], answer.text

    server.put("/corpora/empty")
    server.put("/corpora/own", json={"vectors": "own"}).raise_for_status()
    refused("/corpora/empty/adapt", 409, "no documents")
    refused("/corpora/own/adapt", 409, "reembed")
    refused("/corpora/absent/adapt", 404, "absent")
    refused("/corpora/c/adapt", 422, "max_steps", max_steps=0)
    refused("/corpora/c/adapt", 422, "steps", steps=5)
    for number in range(MOST_KEPT):
        (tmp_path / "adapted" / "c" / str(number)).mkdir(parents=True)
    refused("/corpora/c/adapt", 409, f"{MOST_KEPT} encoders")
    assert server.get("/info").json()["adapts"] is True
    monkeypatch.setattr("serving.jobs.adapting.find_spec", lambda _: None)
    refused("/corpora/c/adapt", 501, "isosphere[train]")
    assert server.get("/info").json()["adapts"] is False


def test_a_server_can_be_told_to_adapt_nothing(
    make_service: MakeService, wait_until_ready: Callable[[TestClient], None], stub: Stub
) -> None:
    with TestClient(create_app(make_service(no_adapt=True))) as client:
        wait_until_ready(client)
        fill(client)
        assert client.post("/corpora/c/adapt").status_code == 501
        assert client.get("/info").json()["adapts"] is False


def test_who_may_write_the_corpus_may_adapt_an_encoder_to_it(
    make_service: MakeService, wait_until_ready: Callable[[TestClient], None], stub: Stub, tmp_path: Path
) -> None:
    stub(ADAPTS.replace("BEST", "None"))
    with TestClient(create_app(make_service(api_keys_file=keys_in(tmp_path)))) as client:
        wait_until_ready(client)
        documents = {"documents": [{"text": "River 0 is long. It ends."}]}
        client.put("/corpora/c", headers=BEARER)
        client.post("/corpora/c/documents", json=documents, headers=BEARER).raise_for_status()
        asked = {name: client.post("/corpora/c/adapt", headers=bearer(name)) for name in ("reader", "tenant", "writer")}
        assert [answer.status_code for answer in asked.values()] == [403, 403, 202]


def test_an_interrupted_job_goes_on_with_the_texts_that_it_began_with(stub: Stub, tmp_path: Path) -> None:
    stub(WAITS)
    with serving(tmp_path / "data") as client:
        fill(client)
        job = client.post("/corpora/c/adapt").headers["location"]
        wait(lambda: client.get(job).json()["done"] == 3)
        fill(client, count=5)
    stub(ADAPTS.replace("BEST", '"whitened"'))
    with serving(tmp_path / "data") as client:
        wait(lambda: client.get(job).json()["finished"] is not None)
        found = client.get(job).json()
        given = json.loads((Path(found["result"]["bundle"]) / "given.json").read_text())
    assert found["state"] == "succeeded"
    assert (len(given["rows"]), given["resume"]) == (3, True)


def test_an_interrupted_job_of_a_model_that_is_served_no_more_fails_with_its_name(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(WAITS)
    with serving(tmp_path / "data") as client:
        fill(client)
        job = client.post("/corpora/c/adapt").headers["location"]
        wait(lambda: client.get(job).json()["done"] == 3)
    fake = ENGINES["fake"](Path())
    other = replace(fake, manifest=replace(fake.manifest, name="other"))
    monkeypatch.setitem(ENGINES, "fake", lambda _: other)
    with serving(tmp_path / "data") as client:
        wait(lambda: client.get(job).json()["finished"] is not None)
        found = client.get(job).json()
    assert found["state"] == "failed"
    (error,) = found["errors"]
    assert "'fake'" in error["error"] and "'other'" in error["error"]
    assert not list((tmp_path / "data" / "adapting").rglob("*.jsonl"))


def test_adapted_encoders_count_as_what_their_corpus_takes(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service()
    for folder in ("adapted/c/one", "adapting/c/job", "adapted/other/two"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "weights").write_bytes(b"0" * 1000)
    assert service.disk_quota.used(lambda name: name == "c") == 2000
    service.jobs.close()
    service.library.close()


def test_what_a_job_left_is_swept(tmp_path: Path) -> None:
    adaptations = Adaptations(tmp_path / "working", tmp_path / "made")
    for name in ("going", "ended"):
        (adaptations.working / "c" / name).mkdir(parents=True)
    adaptations.sweep(lambda _: ["going"])
    assert [folder.name for folder in (adaptations.working / "c").iterdir()] == ["going"]


def test_a_process_of_a_killed_server_is_waited_for(tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.2, os.close, [held]).start()
    began = time.monotonic()
    with locked(tmp_path):
        assert time.monotonic() - began >= 0.1


# Tests of the command itself, with a tiny encoder.

PASSAGES = 300


def prose() -> list[dict[str, Any]]:
    draw = random.Random(0)

    def sentence() -> str:
        return f"{' '.join(draw.sample(WORDS, 8)).capitalize()}."

    texts = [" ".join(sentence() for _ in range(3)) for _ in range(PASSAGES)]
    return [{"id": f"d{i}", "text": text, "metadata": {"title": text[:20]}} for i, text in enumerate(texts)]


@pytest.fixture
def real(launch: Launcher, tiny_bundle: Path) -> Callable[[], Running]:
    """Return a function that starts a server of the tiny encoder."""
    return lambda: launch("--bundle", str(tiny_bundle), engine="onnxruntime")


def put(client: httpx.Client, documents: list[dict[str, Any]]) -> None:
    client.put("/corpora/c").raise_for_status()
    for start in range(0, len(documents), 256):
        client.post("/corpora/c/documents", json={"documents": documents[start : start + 256]}).raise_for_status()


@pytest.mark.slow
def test_an_encoder_is_adapted_loaded_and_embeds_the_corpus(real: Callable[[], Running]) -> None:
    client = real().client
    put(client, prose())
    job = ended(client, client.post("/corpora/c/adapt", json={"max_steps": 3}))
    assert (job["state"], job["done"], job["total"]) == ("succeeded", 3, 3), job
    result = job["result"]
    start, *made = result["encoders"]
    assert (start["stage"], [one["stage"] for one in made]) == ("start", ["trained", "whitened"])
    for one in made:
        assert one["low"] <= one["gain"] <= one["high"]
        assert one["gain"] == pytest.approx(one["ndcg10"] - start["ndcg10"])
    assert (result["queries"], result["start"], result["best"]) == (14, "tiny", "whitened")
    load, reembed = result["next"]
    assert client.request(load["method"], load["path"], json=load["body"]).status_code == 201
    done = ended(client, client.request(reembed["method"], reembed["path"], json=reembed["body"]))
    assert done["result"]["model"] == result["model"]
    assert client.get("/corpora/c").json()["fingerprint"] == done["result"]["fingerprint"]


@pytest.mark.slow
def test_single_sentences_fail_with_the_command_s_own_words(real: Callable[[], Running]) -> None:
    client = real().client
    put(client, [{"text": document["text"].partition(".")[0]} for document in prose()])
    job = ended(client, client.post("/corpora/c/adapt"))
    (error,) = job["errors"]
    assert job["state"] == "failed"
    assert error["error"].startswith("c.jsonl: contains single sentences") and "\n" not in error["error"]


@pytest.mark.slow
def test_a_killed_server_s_training_goes_on(real: Callable[[], Running], tmp_path: Path) -> None:
    server = real()
    put(server.client, prose())
    job = server.client.post("/corpora/c/adapt", json={"max_steps": 2000}).headers["location"]
    wait(lambda: server.client.get(job).json()["done"] > 0)
    server.kill()
    client = real().client
    wait(lambda: client.get(job).json()["done"] > 1)
    assert client.get(job).json()["state"] == "running"
    assert client.delete(job).json()["state"] == "cancelled"
    assert not list((tmp_path / "adapting" / "c").iterdir())
