"""ONNX Runtime on a CPU or a CUDA device. Pooling and normalisation are in the graph."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from models import bundle
from models.tokenizer import Direction, Tokenizer, Tokens
from serving.ports import Device, Embedded, EngineError, EngineOptions, Model

log = logging.getLogger(__name__)

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


class OnnxRuntimeEngine:
    """An ONNX session and the tokenizer that belongs to it.

    Raises:
        EngineError: CUDA was asked for and there is none.
    """

    name = "onnxruntime"
    precision = "fp32"

    def __init__(self, source: bundle.Bundle, options: EngineOptions) -> None:
        self._tokenizer = Tokenizer(source.tokenizer_file, max_length=source.manifest.max_length)
        self._session = _session(source.onnx, options)
        self._inputs = {node.name for node in self._session.get_inputs()}
        self.device = "cuda" if self._session.get_providers()[0] == CUDA else "cpu"
        self.vocab_size = self._tokenizer.vocab_size

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """Tokens of each text, cut to the bundle's `max_length`."""
        return self._tokenizer.encode(texts, direction=direction)

    def embed(self, batch: Sequence[Tokens]) -> Embedded:
        """One run of the graph over the padded batch."""
        ids, mask = self._tokenizer.pad(batch)
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids)
        vectors, norms = self._session.run(["sentence_embedding", "norm"], feed)
        return Embedded(vectors, norms)


def open_bundle(folder: Path) -> Model:
    """The verified bundle in `folder`.

    Raises:
        BundleError: the folder is not a whole bundle; the message names the file.
    """
    source = bundle.load(folder)
    return Model(
        source.manifest,
        load=lambda options: OnnxRuntimeEngine(source, options),
        report=_listed(source, bundle.REPORT),
        report_page=_listed(source, bundle.REPORT_PAGE),
    )


def _listed(source: bundle.Bundle, path: str) -> bytes | None:
    return (source.folder / path).read_bytes() if path in source.manifest.files else None


def _session(graph: Path, options: EngineOptions) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    settings.enable_mem_pattern = False  # plans are kept per shape, and here every batch has its own
    session = onnxruntime.InferenceSession(str(graph), settings, providers=_providers(options.device))
    if options.device == "cuda" and session.get_providers()[0] != CUDA:
        raise EngineError("CUDA was asked for, but ONNX Runtime could not start on it (driver, CUDA or cuDNN missing)")
    return session


def _providers(device: Device) -> list[str]:
    present = CUDA in onnxruntime.get_available_providers()
    if device == "cuda" and not present:
        raise EngineError("CUDA was asked for, but this ONNX Runtime has none: install the `gpu` extra")
    return [CUDA, CPU] if present and device != "cpu" else [CPU]
