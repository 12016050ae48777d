"""Tests of the contestants of the serving benchmark and of their start."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.peers.library import Call, Session
from benchmarks.serving.contestants import OURS, Spec, fair, started
from benchmarks.serving.loads import Population
from benchmarks.serving.measure import _start

TEXTS = {"short": Population(["a text", "another"], [4, 3])}
LIBRARY = """
import json, os, pathlib, sys
kept = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""), "kept")
looked_up = kept.exists()
if {remembers}:
    kept.touch()
for line in sys.stdin:
    vector = [1.0, 0.0] if looked_up or not {remembers} else [0.0, 1.0]
    print(json.dumps(dict(vectors=[vector for _ in json.loads(line).get("embed", [])])), flush=True)
"""
TRUNCATES = """
import json, sys
for line in sys.stdin:
    texts = json.loads(line).get("embed", [])
    print(json.dumps(dict(vectors=[[0.0, 1.0] if text == "a long text" else [1.0, 0.0] for text in texts])), flush=True)
"""
RESETS = """
import socket, struct, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    asking = server.accept()[0]
    asking.recv(1)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    asking.close()
"""
BABBLES = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    asking = server.accept()[0]
    asking.recv(1 << 16)
    asking.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 5\\r\\n\\r\\nhello")
    asking.close()
"""


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code, "{port}")


def test_variables_that_bind_some_contestants_and_not_others_are_not_handed_on() -> None:
    shell = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "ISOSPHERE_ENGINE": "fake"}
    shell |= {"KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0", "INFINITY_BATCH_SIZE": "1"}
    assert fair(shell).keys().isdisjoint(shell)
    assert fair(shell | {"PATH": "/bin"})["PATH"] == "/bin"


def test_ours_starts_with_an_empty_cache_and_then_again_with_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").touch()  # Files of earlier starts outside the benchmark.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ours = Spec(program(LIBRARY.format(remembers=True)), "ours", None, remembers=True)
    cache = tmp_path / "empty"
    cache.mkdir()
    vectors = []
    for _ in range(2):
        with started(ours, TEXTS, 16, "a text", cache) as contestant:
            vectors.append(contestant.embed(["a text"]).tolist())
    assert vectors == [[[0.0, 1.0]], [[1.0, 0.0]]]


def test_ours_starts_twice_and_who_does_not_start_is_listed_with_the_reason() -> None:
    chosen = {
        OURS: Spec(program(LIBRARY.format(remembers=True)), "ours", None, remembers=True),
        "library": Spec(program(LIBRARY.format(remembers=False)), "a peer", None),
        "resets": Spec(program(RESETS), "a peer"),
        "babbles": Spec(program(BABBLES), "a peer"),
        "missing": Spec(("no-such-program",), "a peer"),
    }
    with ExitStack() as stack:
        field = _start(stack, chosen, TEXTS, 16)
        assert list(field.running) == [OURS, "library"]
    assert {"first_start_s", "second_start_s"} <= field.facts[OURS].keys()
    assert "second_start_s" not in field.facts["library"]
    assert field.facts["library"]["smallest_cosine_to_ours"] == 1.0
    assert "reset" in field.facts["resets"]["does_not_take_part"]
    assert "JSONDecodeError" in field.facts["babbles"]["does_not_take_part"]
    assert "no-such-program does not exist" in field.facts["missing"]["does_not_take_part"]


def test_truncated_texts_are_not_compared_if_the_contestant_truncates_in_another_way() -> None:
    texts = {"short": Population(["a text", "a long text"], [4, 16])}
    chosen = {
        OURS: Spec(program(LIBRARY.format(remembers=False)), "ours", None),
        "truncates": Spec(program(TRUNCATES), "a peer", None, cuts_off_sep=True),
        "differs": Spec(program(TRUNCATES), "a peer", None),
    }
    with ExitStack() as stack:
        field = _start(stack, chosen, texts, 16)
        assert list(field.running) == [OURS, "truncates"]
    assert "differ from ours" in field.facts["differs"]["does_not_take_part"]


def test_a_floor_of_one_request_makes_one_call_at_a_time(tiny_bundle: Path) -> None:
    session, call = (
        kind("onnxruntime", tiny_bundle, 16, threads=4, device="cpu", precision="fp32") for kind in (Session, Call)
    )
    assert session.streams > call.streams == 1
