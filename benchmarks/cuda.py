"""Training steps a second on a CUDA device: BERT-base by every objective, against the published loop and a peer's.

    python -m benchmarks.cuda --corpus wiki1m.txt --to benchmarks/results/gpu/steps.json

Weights are random, in the published layout: what is measured does not depend on them. Each contestant takes some steps
before anyone waits for the device, as a run does; they take turns, so that ratios hold on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.interleave import interleaved, rates
from benchmarks.loops import LENGTH, PEERS
from benchmarks.surroundings import surroundings
from models.command_line import Parser
from models.encoder import Encoder
from models.sources import resolve
from training.assembly import initial, loaded, step_of
from training.config import from_preset
from training.corpus.batches import Batch, tokeniser
from training.corpus.corpus import open_corpus
from training.machine.devices import Devices
from training.speed import Work, matmul_peak

BATCH, STEPS, ROUNDS, WARMUP = 64, 20, 10, 2
DEVICE, BF16 = "cuda", torch.bfloat16
OURS = ("simcse", "gs-infonce", "dclr", "whitenedcse", "imsimcse")
LAUNCHED = "simcse_launched"
"""SimCSE's step with the batch in one chunk, which is not recorded: every kernel is asked for by itself."""
SENTENCES = 1_000_000


def main() -> int:
    """Measures, prints, and keeps the figures."""
    parser = Parser(
        prog="python -m benchmarks.cuda", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpus", nargs="+", default=(), metavar="FILE", help="default: CPython's documentation")
    parser.add_argument("--tokenizer", default="minilm", metavar="NAME|DIR", help="default: %(default)s")
    parser.add_argument("--to", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device")
    with tempfile.TemporaryDirectory() as folder:
        backbone = bert(Path(folder) / "bert-base-uncased", resolve(asked.tokenizer))
        found = measure(backbone, open_corpus(asked.corpus, held_out=0).batches(BATCH, seed=0))
    text = json.dumps({"command": shlex.join(["python", "-m", "benchmarks.cuda", *sys.argv[1:]]), **found}, indent=2)
    print(text)
    if asked.to:
        asked.to.parent.mkdir(parents=True, exist_ok=True)
        asked.to.write_text(text + "\n", encoding="utf-8")
    return 0


def bert(folder: Path, tokenizer: Path) -> Path:
    """A BERT of bert-base-uncased's shape in `folder`, with the tokenizer of another folder."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def measure(backbone: Path, batches: Iterator[Sequence[str]]) -> dict[str, Any]:
    """Whole steps (tokens, forward, backward, clip, AdamW), batch 64, at most 32 tokens, bf16 autocast."""
    texts = [list(batch) for batch in islice(batches, STEPS * (ROUNDS + WARMUP))]
    steps = {
        **{name: _ours(name, backbone, texts) for name in OURS},
        LAUNCHED: _ours("simcse", backbone, texts, chunk_size=BATCH),
        **{name: peer(cycle(texts), backbone, DEVICE) for name, peer in PEERS.items()},
    }
    seconds = interleaved({name: partial(_several, step) for name, step in steps.items()}, ROUNDS, WARMUP)
    peak = matmul_peak(torch.device(DEVICE), BF16)
    against = {peer: rates(seconds, BATCH * STEPS, peer) for peer in (*PEERS, LAUNCHED)}
    return {
        **surroundings(),
        "device": torch.cuda.get_device_name(),
        "setting": (
            f"a BERT-base of random weights, [CLS], batch {BATCH}, {LENGTH} tokens at most, bf16 autocast; {ROUNDS} "
            f"interleaved rounds of {STEPS} steps, none waited for before the last; {LAUNCHED}: ours, every kernel "
            "launched by itself; published: princeton-nlp/SimCSE's loop in transformers, sdpa, padded to the longest; "
            "sentence_transformers: MultipleNegativesRankingLoss on (text, text)"
        ),
        "figures": {
            "peak_flops_per_s": f"{peak:.3g}",
            "contestants": {
                name: {
                    "ms_a_step": round(statistics.median(times) / STEPS * 1e3, 2),
                    "seconds_for_1e6_sentences": round(statistics.median(times) / STEPS / BATCH * SENTENCES),
                    **{f"times_{peer}": against[peer][name][f"times_{peer}"] for peer in (*PEERS, LAUNCHED)},
                }
                for name, times in seconds.items()
            },
            "simcse_utilisation": round(
                6
                * statistics.mean(_operations(backbone, texts))
                / (statistics.median(seconds["simcse"]) / STEPS)
                / peak,
                3,
            ),
        },
    }


def _several(step: Callable[[], object]) -> None:
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()


def _operations(backbone: Path, texts: Sequence[Sequence[str]]) -> list[float]:
    """Of one pass over each batch."""
    encoder = Encoder.load(backbone, pooling="cls")
    work = Work.of(encoder)
    return [work.forward(min(len(each), LENGTH) for each in encoder.tokenizer.encode(batch)) for batch in texts[:STEPS]]


def _ours(name: str, backbone: Path, texts: Sequence[Sequence[str]], **changes: Any) -> Callable[[], object]:
    """The step of a run, at its objective's preset; its teacher is the backbone."""
    config = from_preset(name, backbone=str(backbone)).override({"batch_size": BATCH, "dropout": 0.1, **changes})
    devices = Devices(DEVICE)
    state = initial(config, devices, BF16)
    state.encoder.train()
    teacher = loaded(str(backbone), devices, pooling="cls") if state.objective.needs.teacher else None
    step = step_of(config, state, devices, teacher, BF16)
    tokenise: Callable[[Sequence[str]], Batch] = tokeniser(state.encoder, teacher, max_length=LENGTH, own=devices.rows)
    waiting = cycle(texts)
    return lambda: step(tokenise(next(waiting)), config.learning_rate)


if __name__ == "__main__":
    sys.exit(main())
