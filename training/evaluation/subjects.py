"""Encoders to evaluate: bundles and adapters (as ONNX graphs), other local encoders (by torch), and servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from models import cpus
from models.bundle.adapter import is_adapter
from models.bundle.bundle import FP32, Bundle
from models.bundle.prompts import nonempty
from models.bundle.sources import MINILM, local_bundle, manifest_of, manifest_without_torch, resolve
from models.encoder.encoder import Encoder
from models.errors import Refused, first_line
from models.export.assembly import assemble
from models.remotes.base import without_user
from models.runtimes import REFERENCE, Pair, available
from models.runtimes.base import Options, RuntimeUnavailable, engine_errors
from models.runtimes.choice import candidates
from models.runtimes.graph import Graph
from training.encoding.views import autocast
from training.evaluation.beir import Collection
from training.evaluation.server import Server
from training.evaluation.vectors import Encode

AUTOCAST = {FP32: None, "bf16": torch.bfloat16}
"""Autocast type of torch's matrix products, by precision."""


class SubjectError(Refused):
    """The encoder can't be evaluated with these options. The message contains the reason."""


@dataclass(frozen=True)
class OtherGraph:
    """The encoder of a `Subject`, run in another precision or by another runtime than in `Subject.encode`."""

    encode: Encode
    """Function that encodes texts. It loads the graph at the first call."""
    bytes: int
    """Size of the graph's file in bytes."""


@dataclass(frozen=True)
class Subject:
    """An encoder under evaluation."""

    facts: Mapping[str, Any]
    encode: Encode
    others: Mapping[str, OtherGraph] = field(default_factory=dict)
    """Other ways to run the same bundle on this machine, by precision and runtime (see `variant`)."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts of the encoder by name. In retrieval, queries and documents are encoded with the prompts for their roles.
    """
    run: Mapping[str, Any] | None = None
    """The manifest's record of the training run."""
    rankings: Callable[[Collection], Mapping[str, list[str]]] | None = None
    """Function that ranks a collection's documents for each query. None means exact search."""
    close: Callable[[], None] = lambda: None
    """Function to call after the evaluation."""

    @property
    def variant(self) -> str:
        """Return the precision, preceded by the runtime if this is neither ONNX Runtime nor torch."""
        return _variant(str(self.facts["engine"]).split()[0], str(self.facts["precision"]))


def open_subject(
    source: str,
    *,
    pooling: str | None = None,
    by_torch: bool = False,
    engine: str | None = None,
    precision: str | None = None,
    key: str | None,
) -> Subject:
    """Open the encoder to evaluate.

    `source` is a name, a path or a server's URL. If `by_torch` or `pooling` is set, every local encoder runs on torch.
    Without these options, bundles, `minilm` and its adapters run as ONNX graphs, and all other local encoders run on
    torch. `key` is the API key of a server.

    Raises:
        SubjectError: the options contradict each other, or this machine can't run the bundle with them.
        SourceError, AdapterError: the encoder does not exist or can't be read.
        BundleError: the bundle is damaged.
        EvaluationError: the server does not answer.
        Failed: the engine does not load the bundle's graph.
    """
    if source.lower().startswith(("http://", "https://")):
        if pooling or by_torch or engine or precision:
            raise SubjectError(f"{without_user(source)}: pooling, engine and precision can't be set for a server")
        if key and without_user(source) != source:
            raise SubjectError(f"{without_user(source)}: a user in the URL and a key can't both be sent: give one")
        return _served(Server(source, key=key))
    if not (by_torch or pooling) and (opened := local_bundle(source)):
        return _exported(opened, str(opened.folder), engine, precision)
    if not (by_torch or pooling) and (said := manifest_without_torch(source)):
        return _assembled(source, said.name, engine, precision)
    if engine:
        raise SubjectError(f"{source}: this encoder runs on torch, so --engine {engine} does not apply")
    return _by_torch(source, pooling, precision or FP32)


def _assembled(source: str, name: str, engine: str | None, precision: str | None) -> Subject:
    """Open `minilm`, or one of its adapters, with the ONNX graph that a server would assemble for this encoder."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()), "bundle")
        judged = _exported(assemble(source, folder, name=name), source, engine, precision)
        kind = "backbone" if source == MINILM else "adapter"
        return replace(judged, facts={**judged.facts, "kind": kind}, others={}, close=stack.pop_all().close)


def _exported(opened: Bundle, source: str, engine: str | None, precision: str | None) -> Subject:
    options = Options("cpu", cpus.available())
    try:
        pair = candidates(opened, options, runtime=engine, precision=precision or FP32)[0]
    except RuntimeUnavailable as error:
        raise SubjectError(f"{source}: {error}") from error

    def graph_of(pair: Pair) -> Graph:
        return Graph(opened, runtime=pair.runtime, precision=pair.precision, threads=options.threads)

    def other_of(pair: Pair) -> OtherGraph:
        loaded = cache(lambda: graph_of(pair))

        def encode(texts: Sequence[str]) -> Any:
            try:
                return loaded().encode(texts)
            except Exception as error:  # The runtimes' errors have no common base class.
                raise SubjectError(f"{source}: {pair} does not run: {first_line(error)}") from error

        return OtherGraph(encode, _file(opened, pair.precision).stat().st_size)

    with engine_errors(source):
        graph = graph_of(pair)

    def encode(texts: Sequence[str]) -> Any:
        tokens = graph.tokenized(texts)
        with engine_errors(source):
            return graph.embed(tokens).vectors

    prompts = opened.manifest.prompts
    facts = bundle_facts(opened, source, engine=graph.engine, precision=pair.precision) | _prompted(prompts)
    others = {
        _variant(*other): other_of(other)
        for other in available(opened, options)
        if other != pair and (other == REFERENCE or other.precision != FP32)
    }
    return Subject(facts, encode, others, prompts=prompts, run=opened.manifest.run)


def bundle_facts(opened: Bundle, source: str, *, engine: str, precision: str) -> dict[str, Any]:
    """Return facts about a bundle, and about the bundle's graph that runs on the CPU in the evaluation."""
    manifest = opened.manifest
    return {
        "source": source,
        "kind": "bundle",
        "name": manifest.name,
        "objective": manifest.objective,
        "backbone": manifest.backbone,
        "fingerprint": manifest.fingerprint,
        "pooling": manifest.pooling,
        "transform": (manifest.transform or {}).get("kind"),
        "dim": manifest.dim,
        "max_length": manifest.max_length,
        "engine": engine,
        "precision": precision,
        "device": "cpu",
        "bytes": _file(opened, precision).stat().st_size,
    }


def _prompted(prompts: Mapping[str, str]) -> dict[str, Any]:
    """Return an object with the fact `prompts`: the retrieval prompts that are not empty.

    If all prompts are empty, return an empty object.
    """
    return {"prompts": put} if (put := nonempty(prompts)) else {}


def _variant(runtime: str, precision: str) -> str:
    return precision if runtime in (REFERENCE.runtime, "torch") else str(Pair(runtime, precision))


def _file(opened: Bundle, precision: str) -> Path:
    """Return the file of the graph in a precision.

    If the bundle has no such file, return the file of the fp32 graph, which is converted when it is loaded.
    """
    return opened.graphs.get(precision, opened.onnx)


def _by_torch(source: str, pooling: str | None, precision: str) -> Subject:
    if precision not in AUTOCAST:
        raise SubjectError(
            f"torch evaluates in {' or '.join(AUTOCAST)}, not in {precision}, which only bundles may support"
        )
    encoder = Encoder.load(source, pooling=pooling)
    made = manifest_of(source)

    def encode(texts: Any) -> Any:
        with autocast(encoder, AUTOCAST[precision]):
            return encoder.encode(texts)

    facts = {
        "source": source,
        "kind": "backbone" if made is None else "adapter" if is_adapter(resolve(source)) else "bundle",
        "name": made.name if made else f"{Path(source).name}, {encoder.pooling}",
        "objective": made.objective if made else None,
        "backbone": made.backbone if made else Path(source).name,
        "fingerprint": made.fingerprint if made and encoder.pooling == made.pooling else None,
        "pooling": encoder.pooling,
        "transform": encoder.transform.kind if encoder.transform else None,
        "dim": encoder.dim,
        "max_length": encoder.max_length,
        "engine": f"torch {torch.__version__}",
        "precision": precision,
        "device": encoder.device.type,
        "bytes": sum(weight.numel() * weight.element_size() for weight in encoder.parameters()),
        **_prompted(encoder.prompts),
    }
    return Subject(facts, encode, prompts=encoder.prompts, run=made.run if made else None)


def _served(server: Server) -> Subject:
    info = server.info
    facts = {
        "source": server.url,
        "kind": "server",
        "name": info.get("model_id"),
        "objective": info.get("objective"),
        "backbone": info.get("backbone"),
        "fingerprint": info.get("fingerprint"),
        "pooling": ((info.get("model_type") or {}).get("embedding") or {}).get("pooling"),
        "dim": info.get("dim"),
        "max_length": info.get("max_input_length"),
        "engine": info.get("engine"),
        "precision": info.get("precision") or info.get("model_dtype"),
        "device": info.get("device"),
    }
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return Subject(known, server.encode, rankings=server.rankings, close=server.close)
