"""An encoder in this process, without torch and without a server."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from models import cpus
from models.bundle import bundle as bundles
from models.bundle.bundle import Bundle
from models.bundle.prompts import DOCUMENT, QUERY, prompt_for
from models.bundle.sources import MINILM, SourceError, as_bundle, shipped
from models.names import Device
from models.runtimes import RUNTIMES
from models.runtimes.base import Options, cache_folder, engine_errors
from models.runtimes.choice import open_fastest
from models.runtimes.graph import Graph

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
SHOWN_AFTER = 1.0
"""Seconds of work after which a progress bar is shown."""


def load(
    name: str | Path = "default",
    *,
    engine: str | None = None,
    precision: str | None = None,
    device: Device = "auto",
    threads: int | None = None,
) -> Encoder:
    """Load an encoder.

    `name` is an encoder of this project (`default`, `simcse`, …), `minilm`, or the folder of a bundle or adapter.

    The first use of `minilm` or an adapter writes its bundle to the user's cache folder. `engine` is `onnxruntime`,
    `openvino` or `tensorrt`, and `precision` is `fp32`, `bf16` or `fp16`, as for the server. None means the
    fastest choice, which is measured once on each machine. `threads=None` uses all CPUs.

    Raises:
        ValueError: `engine`, `device` or `threads` is not valid.
        SourceError, AdapterError: the encoder does not exist or is damaged, or this user has no cache folder.
        BundleError: the folder contains no complete bundle of an encoder, or the encoder must first be exported by
            `isosphere export`, which needs torch.
        Failed: the export of a bundle failed, for example because the disk is full, or the engine failed.
        RuntimeUnavailable: the engine can't run on this machine or in this precision, or no engine is accurate enough.
    """
    if engine is not None and engine not in RUNTIMES:
        raise ValueError(f"engine: {engine!r} is not one of {', '.join(RUNTIMES)}")
    if device not in get_args(Device):
        raise ValueError(f"device: {device!r} is not one of {', '.join(get_args(Device))}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads: {threads} is less than 1")
    kept = cache_folder()
    if kept is None:
        raise SourceError(
            f"{name}: no cache folder for its bundle, because this user has no home directory: set XDG_CACHE_HOME"
        )
    bundle = bundles.load(as_bundle(_full_name(str(name)), kept / "encoders"))
    options = Options(device, threads or cpus.available())
    with engine_errors(name):
        _, runtime = open_fastest(bundle, options, runtime=engine, precision=precision)
    return Encoder(bundle, Graph(bundle, runtime=runtime))


class Encoder:
    """A loaded encoder. The function `load` creates it from a bundle."""

    def __init__(self, bundle: Bundle, graph: Graph) -> None:
        self._bundle = bundle
        self._graph = graph
        self.name: str = bundle.manifest.name
        self.dimensions: int = bundle.manifest.dim
        self.max_length: int = bundle.manifest.max_length
        """Maximum tokens of a text, including special tokens. Longer texts are truncated at the end."""
        self.prompts: Mapping[str, str] = bundle.manifest.prompts
        """The encoder's own prompts, by name."""
        self.fingerprint: str = bundle.manifest.fingerprint
        """Identifier of the encoder's vectors. Encoders with the same fingerprint compute the same vectors."""
        self.int8_limit: float | None = bundle.int8_limit
        """Calibrated range of int8 output, or None if the bundle has no range (see `models.bundle.quantization`)."""
        self.truncated = 0
        """Number of texts that this encoder has truncated so far."""
        self.runtime, self.precision = graph.runtime, graph.precision
        self.engine = f"{graph.engine}, {graph.precision} on {graph.device}"

    def __repr__(self) -> str:
        return f"<isosphere.Encoder {self.name}: {self.dimensions} dimensions, {self.engine}>"

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str = "",
        dimensions: int | None = None,
        normalize: bool = True,
        progress: bool = True,
    ) -> Floats:
        """Return the vectors (N, D) of N texts, or the vector (D,) of one text.

        `prompt`, or the encoder's own prompt called `prompt_name`, is put before every text. `dimensions` is the number
        of leading dimensions to return. Vectors have unit length unless `normalize` is false. After one second of work,
        a progress bar appears on stderr, unless `progress` is false.

        Raises:
            TypeError: an input is not a text.
            ValueError: a text is not valid Unicode, the prompt name is unknown or given together with `prompt`, or
                `dimensions` is out of range.
            TokenizerFailure: the tokenizer failed on a text.
            Failed: the engine failed, for example because memory ran out.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        if dimensions is not None and not 1 <= dimensions <= self.dimensions:
            raise ValueError(
                f"dimensions: {dimensions} is not between 1 and {self.dimensions}, the dimensions of {self.name}"
            )
        if prompt_name is not None:
            if prompt:
                raise ValueError("prompt: give only one of prompt and prompt_name")
            if prompt_name not in self.prompts:
                known = ", ".join(self.prompts) or "none"
                raise ValueError(f"prompt_name: {self.name} has no prompt {prompt_name!r}, only {known}")
            prompt = self.prompts[prompt_name]
        for text in given:
            if not isinstance(text, str):
                raise TypeError(f"texts: {text!r:.80} is not a text")
        tokens = self._graph.tokenized([prompt + text for text in given])
        if cut := sum(each.truncated for each in tokens):
            self.truncated += cut
            log.warning("%d of %d texts have more than %d tokens and were truncated", cut, len(tokens), self.max_length)
        bar = tqdm(total=len(tokens), unit="text", delay=SHOWN_AFTER, disable=not progress, leave=False)
        with bar, engine_errors(self.name):
            vectors, norms = self._graph.embed(tokens, bar.update)
        if not normalize:
            vectors = (vectors * norms[:, None])[:, :dimensions]
        elif dimensions is not None:
            vectors = _unit(vectors[:, :dimensions])
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_query(self, texts: str | Iterable[str], **options: Any) -> Floats:
        """Return the vectors of queries, with the encoder's prompt for queries. `options` are those of `encode`."""
        return self.encode(texts, prompt=prompt_for(self.prompts, QUERY) or "", **options)

    def encode_document(self, texts: str | Iterable[str], **options: Any) -> Floats:
        """Return the vectors of documents, with the encoder's prompt for documents. `options` are those of `encode`."""
        return self.encode(texts, prompt=prompt_for(self.prompts, DOCUMENT) or "", **options)

    def similarity(self, a: str | Iterable[str] | Floats, b: str | Iterable[str] | Floats) -> Floats:
        """Return the cosine similarities (N, M) between N texts or vectors `a` and M texts or vectors `b`.

        Raises:
            ValueError: the vectors have different dimensions.
        """
        given = (each if isinstance(each, np.ndarray) else self.encode(each) for each in (a, b))
        rows, columns = (_unit(vectors.reshape(-1, vectors.shape[-1])) for vectors in given)
        if rows.shape[1] != columns.shape[1]:
            raise ValueError(f"a and b have vectors of {rows.shape[1]} and {columns.shape[1]} dimensions")
        cosines: Floats = rows @ columns.T
        return cosines


def _unit(vectors: Floats) -> Floats:
    """Scale vectors to unit length. Zero vectors stay zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    norms[norms == 0] = 1
    unit: Floats = vectors / norms
    return unit


def _full_name(name: str) -> str:
    """Return the full name of an encoder of this project, such as `minilm+default` for `default`.

    Full names, `minilm` and paths of folders are returned unchanged.

    Raises:
        SourceError: the name is neither an encoder of this project nor a folder.
    """
    own = f"{MINILM}+{name}"
    if own in shipped():
        return own
    if os.path.exists(name) or name.partition("+")[0] == MINILM:  # noqa: PTH110 (Path raises errors for long names)
        return name
    names = [MINILM, *(one.partition("+")[2] for one in shipped())]
    near = difflib.get_close_matches(name, names, n=1)
    raise SourceError(
        f"{name}: there is no such folder and no such encoder.{f' Did you mean {near[0]}?' if near else ''} There are "
        f"{', '.join(names)}; `isosphere export` makes a folder of an encoder of the hub"
    )
