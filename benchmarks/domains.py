"""Effect of a partial whitening on retrieval in a domain.

The whitening is fitted to unlabelled sentences of the domain. `python -m benchmarks.domains --data DATA --corpus FILE
NAME …` takes a few minutes on two cores. FILE has the domain's sentences. DATA has its collections in BEIR's layout.
`--other FILE` has another domain's sentences, for comparison. The figures are written to
benchmarks/results/encoders/domains.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.surroundings import RESULTS, read, surroundings, write
from models.cli.command_line import Parser
from models.encoder.encoder import Encoder
from models.encoder.transform import Affine
from training.data.corpus import open_corpus
from training.data.files import CorpusError
from training.encoding.views import autocast
from training.evaluation import beir, retrieval
from training.evaluation.beir import Collection
from training.evaluation.bootstrap import resample_means
from training.evaluation.pairs import DataError
from training.evaluation.vectors import Encode, cached
from training.machine.hardware import autocast_dtype
from training.postprocess.whitening import Moments, whitening_matrix

FILE = RESULTS / "encoders" / "domains.json"
ENCODER = "minilm"
SENTENCES = 10_000
"""Maximum number of sentences from a domain."""
DRAWS = 5
"""Number of random halves of the sentences. The variance of their scores shows the effect of the sample."""
POWERS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
NDCG10 = retrieval.MEASURES.index(retrieval.NDCG10)
"""Column of `retrieval.by_query`."""


def main() -> None:
    """Embed the sentences and collections once. Then fit the whitenings, and evaluate them on the collections."""
    parser = Parser(prog="python -m benchmarks.domains", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="collections, or parts of them, such as scifact:train")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with retrieval/NAME")
    parser.add_argument("--corpus", required=True, metavar="FILE", help="sentences of the domain, one per line")
    parser.add_argument("--other", metavar="FILE", help="another domain's sentences")
    parser.add_argument("--encoder", default=ENCODER, metavar="SOURCE", help="encoder (default: %(default)s)")
    options = parser.parse_args()
    encoder = Encoder.load(options.encoder).eval()
    dtype = autocast_dtype("auto", encoder.device)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        with autocast(encoder, dtype):
            return encoder.encode(texts)

    seen = cached(encode)
    try:
        collections = {name: beir.find(options.data, name) for name in options.names}
        domains = {"its own": _vectors(seen, options.corpus)}
        if options.other:
            domains["another domain's"] = _vectors(seen, options.other)
    except (DataError, CorpusError) as error:
        parser.error(str(error))
    about = surroundings()  # Read at the start, because each stored result modifies the checkout.
    for name, collection in collections.items():
        figures = _figures(seen, collection, domains, encoder.prompts)
        print(name, json.dumps(figures, indent=1), flush=True)
        other = f" --other {Path(options.other).name}" if options.other else ""
        encoder_option = "" if options.encoder == ENCODER else f" --encoder {options.encoder}"
        given = f"--data DATA --corpus {Path(options.corpus).name}{other}{encoder_option} {name}"
        entry = name if options.encoder == ENCODER else f"{name}, {Path(options.encoder).name}"
        write(FILE, read(FILE) | {entry: {"command": f"python -m benchmarks.domains {given}", **about, **figures}})


def _vectors(encode: Encode, file: str) -> Tensor:
    """Return the pooled vectors (N, D) of a sample of the sentences in `file`."""
    corpus = open_corpus([file], held_out=0)
    sentences = next(corpus.batches(min(SENTENCES, corpus.census.sentences), seed=0))
    return torch.from_numpy(encode(sentences))


def _figures(
    encode: Encode, collection: Collection, domains: dict[str, Tensor], prompts: Mapping[str, str]
) -> dict[str, Any]:
    def by_query(encode: Encode) -> NDArray[np.float64]:
        return retrieval.by_query(retrieval.rankings(encode, collection, prompts=prompts), collection)[:, NDCG10]

    plain = by_query(encode)
    rows = []
    for fitted_to, centred, power in product(domains, (False, True), POWERS):
        vectors = domains[fitted_to]
        found = by_query(_mapped(encode, vectors, power, centred))
        gain = resample_means([{"queries": found}]).against(resample_means([{"queries": plain}]))
        draws = [100 * by_query(_mapped(encode, half, power, centred)).mean() for half in _halves(vectors)]
        rows.append(
            {
                "fitted_to": fitted_to,
                "power": power,
                "centred": centred,
                "ndcg10": round(100 * float(found.mean()), 2),
                "gain": [round(each, 2) for each in (gain.difference, gain.low, gain.high)],
                "draws": {"mean": round(fmean(draws), 2), "sd": round(stdev(draws), 2), "n": DRAWS},
            }
        )
    return {"queries": len(plain), "ndcg10": round(100 * float(plain.mean()), 2), "whitened": rows}


def _mapped(encode: Encode, vectors: Tensor, power: float, centred: bool) -> Encode:
    """Return `encode` followed by a whitening that is fitted to `vectors`, as in `training.postprocess.whitening`."""
    moments = Moments(vectors.shape[1])
    moments.add(vectors)
    mean = moments.mean if centred else torch.zeros_like(moments.mean)
    transform = Affine.of(mean.float(), whitening_matrix(moments.covariance(), power=power).float())
    return lambda texts: transform(torch.from_numpy(encode(texts))).numpy()


def _halves(vectors: Tensor) -> Iterator[Tensor]:
    for seed in range(DRAWS):
        rows = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))
        yield vectors[rows[: len(vectors) // 2]]


if __name__ == "__main__":
    main()
