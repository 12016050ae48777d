"""Engines by name. An engine opens a bundle quickly, and loads the weights later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from models.bundle import bundle
from models.bundle.bundle import CROSS_ENCODER, Bundle
from models.bundle.tokenizer import Direction, Piece, TextPair, Tokenizer, Tokens, padded_types
from models.runtimes import REFERENCE, RUNTIMES
from models.runtimes.base import Floats, Runtime, RuntimeUnavailable
from models.runtimes.choice import Choice, candidates, open_fastest
from models.runtimes.graph import PairRuntime
from serving.inference import fake_engine
from serving.inference.engine import Embedded, EngineError, EngineOptions, Model


class RuntimeEngine:
    """Engine that runs the graph of a bundle on a runtime, with the tokenizer of the bundle."""

    def __init__(self, choice: Choice, runtime: Runtime, tokenizer: Tokenizer) -> None:
        self.choice, self._runtime = choice, runtime
        self.name, self.precision = self.choice.pair
        self._tokenizer = tokenizer
        self.device = self._runtime.device
        self.streams, self.batch_tokens = self._runtime.streams, self._runtime.batch_tokens
        self.length_step = self._runtime.length_step
        self.vocab_size = self._tokenizer.vocab_size
        self.token_dim = self._runtime.token_dim

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        return self._tokenizer.encode(texts, direction=direction)

    def tokenize_pairs(self, pairs: Sequence[TextPair], direction: Direction) -> list[Tokens]:
        return self._tokenizer.encode_pairs(pairs, direction=direction)

    def pieces(self, texts: Sequence[str], special_tokens: bool) -> list[list[Piece]]:
        return self._tokenizer.pieces(texts, special_tokens=special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        return self._runtime.run(*self._tokenizer.pad(batch), alone=alone)

    def embed_tokens(self, batch: Sequence[Tokens], *, alone: bool = False) -> list[Floats]:
        vectors = self._runtime.run_tokens(*self._tokenizer.pad(batch), alone=alone)
        return [row[: len(tokens)] for row, tokens in zip(vectors, batch, strict=True)]


class PairEngine(RuntimeEngine):
    """Cross-encoder on ONNX Runtime in float32.

    `embed` returns the score of each pair as a vector of one dimension.
    """

    def __init__(self, runtime: PairRuntime, tokenizer: Tokenizer) -> None:
        super().__init__(Choice(REFERENCE), runtime, tokenizer)
        self._pairs = runtime

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        ids, mask = self._tokenizer.pad(batch)
        return self._pairs.run(ids, mask, padded_types(batch, ids.shape), alone=alone)


def open_bundle(folder: Path, *, runtime: str | None = None) -> Model:
    """Open and verify the bundle in `folder`.

    The model will run on `runtime`. If `runtime` is None, it runs on the fastest runtime, which is measured once on
    this machine. Cross-encoders always run on ONNX Runtime in float32.

    Raises:
        BundleError: the bundle is incomplete, or its tokenizer has tokens without an embedding.
    """
    source = bundle.load(folder)
    tokenizer = source.tokenizer
    crosses = source.manifest.kind == CROSS_ENCODER

    def load(options: EngineOptions) -> RuntimeEngine:
        with _as_asked(runtime, options):
            if crosses:
                return PairEngine(PairRuntime(source, options), tokenizer)
            opened = open_fastest(source, options, runtime=runtime, precision=options.precision)
            return RuntimeEngine(*opened, tokenizer)

    def check(options: EngineOptions) -> None:
        with _as_asked(runtime, options):
            if not crosses:
                candidates(source, options, runtime=runtime, precision=options.precision)

    return Model(
        source.manifest,
        load,
        check,
        report=_listed(source, bundle.REPORT),
        report_page=_listed(source, bundle.REPORT_PAGE),
        int8_limit=source.int8_limit,
        label=source.label if crosses else "",
        matryoshka=source.matryoshka,
    )


@contextmanager
def _as_asked(runtime: str | None, options: EngineOptions) -> Iterator[None]:
    """Convert a `RuntimeUnavailable` error in the `with` block to an EngineError.

    The message of the EngineError names the requested options.
    """
    try:
        yield
    except RuntimeUnavailable as error:
        asked = f"--engine {runtime or 'auto'} --precision {options.precision or 'auto'} --device {options.device}"
        raise EngineError(f"{asked}: {error}") from error


def _listed(source: Bundle, path: str) -> bytes | None:
    return (source.folder / path).read_bytes() if path in source.manifest.files else None


ENGINES: dict[str, Callable[[Path], Model]] = {
    "auto": open_bundle,
    **{name: partial(open_bundle, runtime=name) for name in RUNTIMES},
    "fake": fake_engine.open_bundle,
}
