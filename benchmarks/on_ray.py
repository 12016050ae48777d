"""Comparison of `--on ray` with the same work without Ray, interleaved on this machine.

python -m benchmarks.on_ray embed --sentences FILE [--rows 20000] [--rounds 3]

python -m benchmarks.on_ray serve [--requests 200] [--rounds 3]

Each command writes its part of benchmarks/results/on_ray.json. `cpu_ms` counts all processes of a server, including
Ray's own. `load` shows whether the machine did other work.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from benchmarks.interleave import seconds_of
from benchmarks.serving.processes import cpu_seconds
from benchmarks.surroundings import RESULTS, read, surroundings, write
from isosphere.embed.embedding import Model, Options
from isosphere.embed.embedding import embed as embed_here
from isosphere.embed.on_ray.bulk import embed as embed_on_ray
from isosphere.encoder import load
from models import cpus
from models.cluster import connected
from tests.clusters import CALM, free_port

FILE = RESULTS / "on_ray.json"
TEXT = {"inputs": "A cat sits outside in the sun."}


def embed(given: argparse.Namespace) -> dict[str, Any]:
    """Embed the same lines alternately without and with Ray, and return the figures. Each run loads the encoder."""
    seconds: dict[str, list[float]] = {"plain": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        lines, out = Path(folder, "lines.txt"), Path(folder, "out")
        with given.sentences.open() as file:
            lines.write_text("".join(islice(file, given.rows)))
        encoder = load()
        model = Model("default", encoder.runtime, encoder.precision, "cpu", None)
        start = time.perf_counter()
        with connected(None):
            start = time.perf_counter() - start

            def plain() -> None:
                embed_here(load(), [str(lines)], Path(f"{out}.parquet"), Options(), force=True, stream=io.StringIO())

            def ray() -> None:
                embed_on_ray(model, [str(lines)], str(out), Options(), address=None, force=False, stream=io.StringIO())
                shutil.rmtree(out)  # Remove the output, because a finished run would not be repeated.

            for _ in range(given.rounds):
                seconds["plain"].append(round(seconds_of(plain), 2))
                seconds["ray"].append(round(seconds_of(ray), 2))
    ratios = [one / other for one, other in zip(seconds["plain"], seconds["ray"], strict=True)]
    return {
        "rows": given.rows,
        "engine": encoder.engine,
        "start_of_ray_s": round(start, 1),
        "speed_of_plain": {"median": round(statistics.median(ratios), 3), "rounds": [round(r, 3) for r in ratios]},
        "seconds": seconds,
        "load": round(os.getloadavg()[0], 1),
    }


def serve(given: argparse.Namespace) -> dict[str, Any]:
    """Send single texts alternately to servers without and with Ray, and return the figures of both."""
    ports = {"plain": free_port(), "ray": free_port()}
    common = ["--engine", "onnxruntime", "--precision", "fp32", "--threads", "1", "--no-demo"]
    servers = {}
    took: dict[str, list[float]] = {"plain": [], "ray": []}
    busy, idle, idle_s = (dict.fromkeys(ports, 0.0) for _ in range(3))
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=60))
        data = stack.enter_context(tempfile.TemporaryDirectory())
        for way, port in ports.items():
            command = [sys.executable, "-m", "isosphere", "serve", "--port", str(port), *common]
            command += ["--on", "ray"] if way == "ray" else ["--store", "memory", "--data", data]
            server = subprocess.Popen(command, env={**os.environ, **CALM}, stdout=subprocess.DEVNULL)
            servers[way] = stack.enter_context(server)  # At the end, it is waited for.
            stack.callback(server.terminate)
        for port in ports.values():
            _wait(client, port)
        for _ in range(given.rounds):
            for way, port in ports.items():
                before, start = {each: cpu_seconds(one.pid) for each, one in servers.items()}, time.perf_counter()
                for _ in range(given.requests):
                    began = time.perf_counter()
                    client.post(f"http://127.0.0.1:{port}/embed", json=TEXT).raise_for_status()
                    took[way].append(1000 * (time.perf_counter() - began))
                for each, one in servers.items():
                    (busy if each == way else idle)[each] += cpu_seconds(one.pid) - before[each]
                    idle_s[each] += 0 if each == way else time.perf_counter() - start
    requests = given.rounds * given.requests
    figures = {
        way: {
            "p50_ms": round(statistics.median(times), 2),
            "least_ms": round(min(times), 2),
            "cpu_ms": round(1000 * busy[way] / requests, 2),
            "idle_cpus": round(idle[way] / idle_s[way], 3),
        }
        for way, times in took.items()
    }
    added = {key: round(figures["ray"][key] - figures["plain"][key], 2) for key in ("p50_ms", "cpu_ms")}
    return {"requests": requests, "load": round(os.getloadavg()[0], 1), "ray_minus_plain": added, **figures}


def _wait(client: httpx.Client, port: int) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            if client.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise TimeoutError(port)


def main() -> None:
    """Run one of the benchmarks and store its result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_ray")
    parser.add_argument("what", choices=("embed", "serve"))
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ.update(CALM)
    about = surroundings()
    found = embed(given) if given.what == "embed" else serve(given)
    size = f"--sentences FILE --rows {given.rows}" if given.what == "embed" else f"--requests {given.requests}"
    command = f"python -m benchmarks.on_ray {given.what} {size} --rounds {given.rounds}"
    kept = {"command": command, **about, "cpus": cpus.available(), **found}
    write(FILE, read(FILE) | {given.what: kept})
    print(json.dumps(kept, indent=1))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # The servers are ended, too.
    main()
