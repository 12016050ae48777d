"""Encoding of texts by one runtime in one precision, for the contract tests that all runtimes must pass."""

from __future__ import annotations

from typing import NamedTuple

from models.bundle.bundle import Bundle
from models.bundle.tokenizer import Tokenizer
from models.names import Device
from models.runtimes import RUNTIMES, Pair
from models.runtimes.base import Embedded, Options, Runtime


class Place(NamedTuple):
    """A pair of runtime and precision, and its device."""

    pair: Pair
    device: Device

    def __str__(self) -> str:
        return f"{self.pair} on {self.device}"


PLACES = [
    Place(Pair("onnxruntime", "fp32"), "cpu"),
    Place(Pair("onnxruntime", "fp16"), "cpu"),
    Place(Pair("openvino", "fp32"), "cpu"),
    Place(Pair("openvino", "bf16"), "cpu"),
    Place(Pair("onnxruntime", "fp32"), "cuda"),
    Place(Pair("onnxruntime", "fp16"), "cuda"),
    Place(Pair("tensorrt", "fp32"), "cuda"),
    Place(Pair("tensorrt", "fp16"), "cuda"),
]
ALIKE = {"fp32": 0.99999, "bf16": 0.9995, "fp16": 0.9995}
"""Minimum cosine between a text's vectors in two batches, by precision."""
TEXTS = ["a dog", "the old man and the sea", "", "a", "the " * 200, "a red bird can sing in the morning"]


class Runner:
    """Encoder that runs texts in batches in the given order."""

    def __init__(self, opened: Bundle, pair: Pair, device: Device = "cpu") -> None:
        self.bundle, self.pair, self.device = opened, pair, device
        self.tokenizer = Tokenizer(opened.tokenizer_file, max_length=opened.manifest.max_length)
        self._runtime = self.load(threads=1)

    def load(self, *, threads: int, long_lived: bool = False) -> Runtime:
        options = Options(self.device, threads, long_lived)
        return RUNTIMES[self.pair.runtime](self.bundle, self.pair.precision, options)

    def __call__(self, texts: list[str]) -> Embedded:
        return self._runtime.run(*self.tokenizer.pad(self.tokenizer.encode(texts)))
