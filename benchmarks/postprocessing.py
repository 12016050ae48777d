"""Post-processing methods for `minilm`, fitted to CPython's documentation and evaluated on the seven STS tasks.

`python -m benchmarks.postprocessing --data DATA` takes a quarter of an hour on two cores, most of it for DCL's five
epochs. It writes benchmarks/results/encoders/postprocessing.json, which has the figures of the table in
docs/objectives.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.encodings import scores
from benchmarks.surroundings import RESULTS, surroundings, write
from models.cli.command_line import Parser
from models.encoder.encoder import Encoder
from models.encoder.transform import Affine, Transform
from training.data.corpus import Corpus, open_corpus
from training.evaluation.pairs import STS_TASKS, DataError, Subsets, sts_tasks, texts
from training.evaluation.vectors import Encode, cached
from training.postprocess import POSTPROCESSES
from training.postprocess.whitening import Moments, whitening_matrix

FILE = RESULTS / "encoders" / "postprocessing.json"
COMMAND = "python -m benchmarks.postprocessing --data DATA"
ENCODER = "minilm"
SEED = 42
"""Default seed of `training postprocess`."""
TARGET_DIMS = 256
ROWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("whitening", {}),
    ("whitening", {"dims": 256}),
    ("whitening", {"dims": 128}),
    ("flow", {}),
    ("dcl", {}),
    ("dcl", {"learning_rate": 1e-3}),
    ("dcl", {"learning_rate": 1e-3, "epochs": 5}),
)


def main() -> None:
    """Embed the tasks once, and then fit and evaluate each method. The results are written at the end."""
    parser = Parser(prog="python -m benchmarks.postprocessing", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="SentEval's data")
    options = parser.parse_args()
    try:
        tasks = sts_tasks(options.data)
    except DataError as error:
        parser.error(str(error))
    if absent := [name for name in STS_TASKS if name not in tasks]:
        parser.error(f"{options.data} lacks {', '.join(absent)}")
    corpus = open_corpus([])
    seen = cached(Encoder.load(ENCODER).encode)
    kept: dict[str, Any] = {"command": COMMAND, **surroundings(), "sentences": corpus.census.sentences, "seed": SEED}
    kept["rows"] = []
    for row in _rows(seen, tasks, corpus):
        print(json.dumps(row), flush=True)
        kept["rows"].append(row)
    write(FILE, kept)


def _rows(seen: Encode, tasks: dict[str, Subsets], corpus: Corpus) -> Iterator[dict[str, Any]]:
    yield {"transform": None, **scores(seen, tasks)}
    yield {"transform": "whitening on the tests", "params": {"dims": TARGET_DIMS}} | scores(
        _through(_target(seen, tasks), seen), tasks
    )
    for name, changed in ROWS:
        chosen = POSTPROCESSES[name]
        params = replace(chosen.params, **changed)
        encoder = Encoder.load(ENCODER)
        fitted = chosen.apply(encoder, corpus, params, seed=SEED, stream=sys.stderr)
        judged = scores(_through(fitted.transform.eval(), seen), tasks)
        yield {"transform": name, "params": asdict(params), "facts": dict(fitted.facts), **judged}


def _target(seen: Encode, tasks: dict[str, Subsets]) -> Transform:
    """Return the whitening that is fitted to the test sentences, as in the paper's "target" rows."""
    vectors = torch.from_numpy(np.asarray(seen(texts(tasks))))
    moments = Moments(vectors.shape[1])
    moments.add(vectors)
    return Affine.of(moments.mean.float(), whitening_matrix(moments.covariance(), TARGET_DIMS).float())


def _through(transform: Transform, seen: Encode) -> Encode:
    @torch.no_grad()
    def encode(sentences: Sequence[str]) -> NDArray[np.float32]:
        mapped: NDArray[np.float32] = transform(torch.from_numpy(np.asarray(seen(sentences)))).numpy()
        return mapped

    return encode


if __name__ == "__main__":
    main()
