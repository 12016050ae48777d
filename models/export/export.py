"""Export of an encoder to a bundle: weights, tokenizer, files for sentence-transformers, and a verified ONNX graph.

The graph includes pooling and normalisation, so programs that run the graph need not know the pooling. The graph's
second output, `norm`, is the length of the vector before normalisation. For `normalize: false`, the server multiplies
the unit vector by `norm`. The third output, `token_embeddings`, has the vectors of all tokens. Runtimes copy this
output only for requests that need it.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from models import cpus
from models.bundle import bundle, quantization
from models.bundle.bundle import Bundle, BundleError, Golden
from models.bundle.disk import naming
from models.bundle.sources import SourceError
from models.encoder import transform
from models.encoder.encoder import MIN_NORM, Encoder, UnitVector, dropout_off
from models.errors import Failed
from models.export import destination, sentence_transformers_format
from models.export.exporters import EXPORTERS
from models.runtimes.base import Embedded, Options
from models.runtimes.choice import Choice
from models.runtimes.graph import golden_cosine_of
from models.runtimes.onnxruntime import CPU, Session

if TYPE_CHECKING:
    from transformers import PretrainedConfig

log = logging.getLogger(__name__)

PARITY = 1e-4
"""Maximum difference between ONNX Runtime and torch in any component of a unit vector."""
MIN_COSINE_TO_PREVIOUS = 0.9999
"""Minimum cosine between an encoder's vectors and its earlier golden vectors.

Above this cosine, the encoder counts as unchanged.
"""

EQUAL_WITHIN = 1e-6
"""Maximum difference in any component between two vectors that count as equal."""

GOLDEN_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A man is playing a guitar on the stage.",
    "Somebody performs music for an audience.",
    "The central bank raised interest rates by half a percentage point.",
    "How do I read a file line by line?",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "No.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "x = [i ** 2 for i in range(10)]",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
)


class ExportError(Failed):
    """The exported graph's results differ from torch's, or torch's vectors differ from earlier golden vectors."""


def export(
    encoder: Encoder,
    folder: Path,
    *,
    name: str,
    backbone: str,
    objective: str | None = None,
    run: dict[str, Any] | None = None,
    scores: dict[str, float] | None = None,
    citations: Sequence[str] = (),
    exporter: str = "torch",
    previous: Bundle | None = None,
    adapter: Mapping[str, Any] | None = None,
    fp16_graph: bool = False,
    measure_with: Options | None = None,
    on_choice: Callable[[Choice], object] = lambda _: None,
) -> Bundle:
    """Write `encoder` as a verified bundle, atomically. After an error, `folder` is unchanged.

    `citations` are the BibTeX entries of the training method. The model card lists them before the citations of the
    encoder's origin. `exporter` is one of `models.export.exporters.EXPORTERS`. If the weights were merged from a base
    and an adapter, `adapter` describes both (`models.bundle.adapter`). `fp16_graph` adds a float16 graph.

    `previous` is an earlier bundle of the same encoder. The encoder must reproduce its golden vectors. The new bundle
    gets the config.json of `previous`, and so has the same fingerprint. A new config.json would change the fingerprint
    with each version of transformers, because each version writes different defaults.

    With `measure_with`, the runtimes of this machine are compared under these options, `on_choice` is called with the
    result, and the bundle contains the measurements.

    Raises:
        ExportError: ONNX Runtime's vectors differ from torch's by more than `PARITY`, torch's vectors differ from the
            golden vectors of `previous`, or the float16 graph loses too much accuracy.
        Refused: `exporter` is not installed, or does not support this backbone.
        SourceError: a vector of `encoder` is zero or not finite, or all vectors have the same direction.
        bundle.BundleError: `folder` contains files that are not part of a bundle, a prompt leaves no room for a text,
            or the new bundle is invalid, for example because of its name.
        OSError: the bundle can't be written; the message names `folder`.
    """
    check_prompts(encoder)
    check_vectors(encoder)
    with naming(folder), destination.writing(folder) as draft:
        encoder.save(draft)
        if previous:
            check_reproduces(encoder, previous)
            shutil.copyfile(previous.folder / "config.json", draft / "config.json")
        sentence_transformers_format.write(encoder, draft)
        (draft / "onnx").mkdir()
        write_onnx(encoder, draft / bundle.ONNX, exporter)
        parity = check_parity(encoder, draft / bundle.ONNX)
        if fp16_graph:
            write_fp16(encoder, draft / bundle.ONNX, draft / bundle.FP16_ONNX)
        write_int8_limit(encoder, draft)
        facts = {
            **encoder_facts(encoder),
            "name": name,
            "objective": objective,
            "backbone": backbone,
            "run": run,
            "scores": {**(scores or {}), "onnx_parity": parity},
            "adapter": adapter and dict(adapter),
        }
        destination.seal(draft, facts, encoder.origin, citations, measure_with=measure_with, on_choice=on_choice)
    return bundle.load(folder)


def write_int8_limit(encoder: Encoder, folder: Path) -> None:
    limit = quantization.limit(unit_vectors(encoder, quantization.calibration()))
    quantization.write(limit, folder / bundle.INT8)


def encoder_facts(encoder: Encoder) -> dict[str, Any]:
    """Return those fields of a bundle's manifest that describe the encoder, including its golden vectors."""
    golden = unit_vectors(encoder, GOLDEN_SENTENCES)
    return {
        "dim": encoder.dim,
        "max_length": encoder.max_length,
        "pooling": encoder.pooling,
        "prompts": encoder.prompts,
        "transform": transform.described(encoder.transform),
        "golden": [Golden(text=t, vector=v.tolist()) for t, v in zip(GOLDEN_SENTENCES, golden, strict=True)],
    }


def write_onnx(encoder: Encoder, file: Path, exporter: str = "torch") -> None:
    """Write the float32 graph of `UnitVector(encoder)`, with dynamic batch size and length.

    `exporter` is one of `EXPORTERS`.

    The graph must be exported without dropout. Torch's exporter applies the mode of the outermost module to all
    modules, so this module is switched to evaluation mode.

    Raises:
        Refused: the exporter is not installed, or does not support this backbone.
    """
    graph = UnitVector(encoder)
    with dropout_off(graph), warnings.catch_warnings():
        # The tracer warns about every shape that it reads. The warnings are not needed, because parity is checked.
        warnings.simplefilter("ignore")
        EXPORTERS[exporter](graph, file)


def write_fp16(encoder: Encoder, graph: Path, file: Path) -> None:
    """Convert the float32 graph in the file `graph` to float16, and write it to `file`.

    Operators of attention are fused, unless the fusion changes the vectors.

    Raises:
        ExportError: the cosine between a float16 vector and torch's vector is below `bundle.GOLDEN_COSINE`.
    """
    fuse(graph, file, encoder.backbone.config)
    try:
        check_parity(encoder, file)
    except ExportError as error:
        log.warning("the float16 graph is made without fused operators, because they change the vectors: %s", error)
        shutil.copyfile(graph, file)
    halve(file)
    for case, torchs, got, _ in _torch_and_onnx(encoder, file):
        worst = float((torchs.vectors * got.vectors).sum(axis=1).min())
        if not worst >= bundle.GOLDEN_COSINE:  # This form of the comparison also refuses NaN.
            raise ExportError(
                f"{case}: the float16 graph's cosine to torch's vectors is {worst:.5f}, "
                f"below {bundle.GOLDEN_COSINE}: export without --fp16"
            )


def check_prompts(encoder: Encoder) -> None:
    """Raise an error if a prompt leaves no room for a text within the encoder's maximum length.

    Raises:
        bundle.BundleError: a prompt alone reaches the encoder's maximum length.
    """
    for name, prompt in encoder.prompts.items():
        (tokens,) = encoder.tokenizer.encode([prompt])
        if tokens.length >= encoder.max_length:
            raise BundleError(
                f"prompt {name}: its {tokens.length} tokens leave no room for a text: the maximum "
                f"is {encoder.max_length} tokens"
            )


def check_vectors(encoder: Encoder) -> None:
    """Check that the vectors of the golden sentences have a direction, and do not all have the same direction.

    Raises:
        SourceError: a vector is zero or not finite, or all vectors have the same direction.
    """
    vectors = encoder.encode(GOLDEN_SENTENCES)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=1)
    for text, length in zip(GOLDEN_SENTENCES, lengths, strict=True):
        if not 0 < length < np.inf:
            raise SourceError(f"the encoder gives {text!r} a vector of length {length}, which has no direction")
    if np.ptp(vectors / lengths[:, None], axis=0).max() <= EQUAL_WITHIN:
        raise SourceError("the encoder gives all texts the same vector")


def check_reproduces(encoder: Encoder, before: Bundle) -> None:
    """Check that the encoder reproduces the golden vectors of `before`.

    Raises:
        ExportError: the cosine to a golden vector is below `MIN_COSINE_TO_PREVIOUS`. The cause may be that another
            version of transformers computed the golden vectors.
    """
    worst = golden_cosine_of(lambda texts: unit_vectors(encoder, texts), before)
    if not worst >= MIN_COSINE_TO_PREVIOUS:
        raise ExportError(
            f"{before.folder}: cosine {worst:.6f} to a golden vector, below {MIN_COSINE_TO_PREVIOUS}: "
            "this environment's version of transformers computes other vectors from the same files"
        )


def check_parity(encoder: Encoder, file: Path) -> float:
    """Return the largest difference between the results of ONNX Runtime and torch for test texts.

    The texts are short, long, empty and padded. Differences of unit vectors are absolute. Differences of norms and
    token vectors are relative.

    Raises:
        ExportError: the difference exceeds `PARITY`.
    """
    worst = 0.0
    for case, torchs, got, tokens in _torch_and_onnx(encoder, file):
        # Warnings about non-finite numbers are suppressed, because such numbers are reported below.
        with np.errstate(invalid="ignore"):
            vectors, norms = _max_abs(got.vectors - torchs.vectors), _max_abs(got.norms / torchs.norms - 1)
        difference = float(np.max([vectors, norms, tokens]))  # Unlike `max`, np.max returns NaN if a value is NaN.
        if not difference <= PARITY:  # This form of the comparison also refuses NaN.
            raise ExportError(f"{case}: ONNX Runtime differs from torch by {difference:.2e}, more than {PARITY:.0e}")
        worst = max(worst, difference)
    return worst


def _torch_and_onnx(encoder: Encoder, file: Path) -> Iterator[tuple[str, Embedded, Embedded, float]]:
    """Encode several batches of test texts, with torch and with the graph `file` in ONNX Runtime.

    For each batch, yield its name, torch's result, ONNX Runtime's result, and the difference of the token vectors. To
    compute it, divide each component's difference by the norm of torch's vector of the same token, and take the largest
    absolute value.
    """
    session, graph = Session(file, [CPU], cpus.available()), UnitVector(encoder)
    long = " ".join(GOLDEN_SENTENCES * (encoder.max_length // 40 + 1))
    cases: dict[str, Sequence[str]] = {
        "a short text": ["A short text."],
        "a text of the maximal length": [long],
        "a single token": ["a"],
        "an empty text": [""],
        "a padded batch": [*GOLDEN_SENTENCES, "a", "", long],
    }
    for name, texts in cases.items():
        batch = encoder.tokenizer.encode(texts)
        with torch.inference_mode(), dropout_off(graph):
            *torchs, tokens = (out.float().cpu().numpy() for out in graph(*encoder.tensors(batch)))
        ids, mask = encoder.tokenizer.pad(batch)
        expected, got = tokens[mask == 1], session.run_tokens(ids, mask)[mask == 1]
        lengths = np.linalg.norm(expected, axis=1, keepdims=True).clip(MIN_NORM)
        with np.errstate(invalid="ignore"):
            difference = _max_abs((got - expected) / lengths)
        yield name, Embedded(*torchs), session.run(ids, mask), difference


def unit_vectors(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the unit vectors (N, D) of texts, computed by torch."""
    vectors = encoder.encode(texts)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(MIN_NORM)
    return vectors


def _max_abs(difference: NDArray[np.float32]) -> float:
    return float(np.abs(difference).max())


# Optimisation of a float32 graph for GPUs: attention is fused, and the backbone is converted to half precision.
# Pooling, transform, normalisation, inputs and outputs stay in float32, so the graph's interface does not change.

BACKBONE = "/backbone/"
"""Prefix of the names of the backbone's nodes, because exporters name a node by the path of its module."""


def fuse(graph: Path, file: Path, config: PretrainedConfig) -> None:
    """Write `graph` to `file` with operators fused by ONNX Runtime's optimiser.

    `config` is the backbone's configuration.
    """
    from onnxruntime.transformers.optimizer import optimize_model

    # Texts are padded on the right, so a length can replace the mask. The fast attention kernels need a length.
    fused = optimize_model(
        str(graph), model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=1
    )
    fused.save_model_to_file(str(file))


def halve(file: Path) -> None:
    """Convert the backbone's weights and operators in the graph `file` to float16, in place."""
    import onnx
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = OnnxModel(onnx.load(file))
    named = [node.name for node in model.nodes() if node.name.startswith("/")]
    ours = [name for name in named if not name.startswith(BACKBONE)]
    model.convert_float_to_float16(keep_io_types=True, node_block_list=ours)
    # An output that several float32 nodes read gets one cast node for each of them, all with the same name.
    nodes = {tuple(node.output): node for node in model.nodes()}
    del model.graph().node[:]
    model.graph().node.extend(nodes.values())
    model.save_model_to_file(str(file))
