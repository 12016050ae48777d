"""The plan of one session on a GPU: its parts in order of value, with the seconds of parts and transfers."""

from __future__ import annotations

from typing import NamedTuple

LIMIT = 11 * 60
"""Seconds of the whole session."""


class Step(NamedTuple):
    """A line of the plan."""

    seconds: int
    """Maximum seconds. A part that takes longer is ended."""
    what: str


TRANSFERS = {
    "runtimes": Step(50, "this repository, ONNX Runtime with CUDA and the server's packages"),
    "faiss": Step(25, "FAISS with its CUDA libraries"),
    "data": Step(15, "minilm's weights, a corpus, the STS data"),
}
PARTS = {
    "checks": Step(65, "the tests that ask for a device, and the contract of every runtime on it"),
    "serving": Step(125, "our server in float16 beside sentence-transformers and bare ONNX Runtime"),
    "search": Step(110, "FAISS on the device beside HNSW on the CPU"),
    "training": Step(170, "steps of every objective beside two peers, and one run over a million sentences"),
    "studies": Step(50, "the papers' ablations from minilm, several runs at once"),
    "pretraining": Step(50, "a language model, and encoders made of it"),
}
"""Parts in order of value. Each is a module of this package with a function `measure`."""
LAST = "pretraining"
"""Name of the part that also gets the unused seconds of the parts before it."""
REHEARSAL = 600
"""Seconds of each part of a rehearsal, which measures nothing and may run beside other work."""

STUDIES = ("studies/gs-infonce/table-3.toml", "studies/whitenedcse/table-5.toml")
"""Files of the part `studies`, run in this order until its time is up."""
JOBS = 12
"""Concurrent runs of a study on the device."""


def table() -> str:
    """Format the plan for a terminal: a line for each transfer and each part, with the sum."""
    rows = [
        *((f"transfer {name}", *step) for name, step in TRANSFERS.items()),
        *((name, *step) for name, step in PARTS.items()),
        ("all", total(), f"of {LIMIT}"),
    ]
    return "\n".join(f"{name:18}{seconds:5} s  {what}" for name, seconds, what in rows)


def total() -> int:
    """Return the seconds of all transfers and parts."""
    return sum(step.seconds for step in (*TRANSFERS.values(), *PARTS.values()))
