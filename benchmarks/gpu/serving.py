"""Speed of our server, sentence-transformers, and ONNX Runtime alone, all in float16, on encoders of two sizes."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.encoders import BERT_BASE, MINILM, TINY, bundle
from benchmarks.gpu.parts import Report, Setting
from benchmarks.serving.contestants import OURS, SCRIPTS, Command, Spec, server_command
from benchmarks.serving.loads import Load, populations
from benchmarks.serving.measure import Choice, compared
from models import cpus
from models.bundle import bundle as bundles
from models.bundle.bundle import Bundle
from models.bundle.tokenizer import Tokenizer
from models.names import Device
from models.runtimes.base import Options, RuntimeUnavailable
from models.runtimes.tensorrt import TensorRt

PRECISION = "fp16"
TEXTS = ("short", "mixed", "long")
CALLERS = (1, 32, 128)
BATCH = 256
"""Number of texts of one request. Libraries get the same texts per call."""
CHOICE = Choice(rounds=3, seconds=0.3)
REHEARSAL = Choice(rounds=1, seconds=0.01)


def measure(setting: Setting, report: Report) -> None:
    """Measure one encoder after the other. Each gets an equal share of the time."""
    shapes = {"tiny": TINY} if setting.tiny else {"minilm": MINILM, "bert-base": BERT_BASE}
    choice = REHEARSAL if setting.tiny else CHOICE
    for waiting, (name, shape) in zip(range(len(shapes), 0, -1), shapes.items(), strict=True):
        ends = time.monotonic() + setting.left / waiting
        with report.attempt(name), TemporaryDirectory() as folder:
            made = bundles.load(bundle(shape, Path(folder)))
            missing = no_tensorrt(made, setting.device)
            report.keep("tensorrt", {"absent": missing})
            texts = populations(Tokenizer(made.tokenizer_file, max_length=shape.max_length))
            chosen = contestants(made.folder, setting.device, tensorrt=not missing)
            for figures in compared(chosen, loads(setting.tiny), texts, shape.max_length, choice=choice, ends=ends):
                report.keep(name, figures)


def loads(tiny: bool) -> Mapping[str, Load]:
    """Return the loads for every population: single texts from several numbers of clients, and batches from one."""
    callers, batch = ((1, 2), 4) if tiny else (CALLERS, BATCH)
    singles = {f"{texts}_singles_{clients}": Load(texts, 1, clients) for texts in TEXTS for clients in callers}
    return singles | {f"{texts}_batch": Load(texts, batch) for texts in TEXTS}


def contestants(made: Path, device: str, *, tensorrt: bool) -> dict[str, Spec]:
    """Return all contestants for the bundle, each in float16."""
    own, route, library = Path(sys.executable), SCRIPTS / "route.py", SCRIPTS / "library.py"
    server = server_command("--bundle", made, "--device", device, "--precision", PRECISION)
    place = device, PRECISION
    called: Command = (str(cpus.available()), "call", *place)
    alone: Command = (str(cpus.available()), "session", *place)
    found = {
        OURS: Spec((*server, "--engine", "onnxruntime"), "our server on ONNX Runtime", "/v1/embeddings"),
        "st_torch": Spec((own, route, "torch", made, "{port}", *place), "sentence-transformers, minimal FastAPI route"),
        "st_library": Spec(
            (own, library, "sentence-transformers", made, *called), "the same library without HTTP", None
        ),
        "bare_onnxruntime": Spec((own, library, "onnxruntime", made, *alone), "ceiling of the engine", None),
        "bare_call": Spec(
            (own, library, "onnxruntime", made, *called),
            "floor of one request: one run on its tokenised texts",
            None,
            most_texts=1,
        ),
    }
    if tensorrt:
        found["isosphere_tensorrt"] = Spec(
            (*server, "--engine", "tensorrt"), "our server on TensorRT", "/v1/embeddings"
        )
        found["bare_tensorrt"] = Spec((own, library, "tensorrt", made, *alone), "ceiling of TensorRT", None)
    return found


def no_tensorrt(made: Bundle, device: Device) -> str | None:
    """Return the reason why TensorRT can't be measured, or None if it can be measured."""
    try:
        TensorRt.precisions(made, Options(device, 1))
    except RuntimeUnavailable as reason:
        return str(reason)
    return None
