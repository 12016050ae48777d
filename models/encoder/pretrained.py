"""Loading of tokenizers and weights in transformers' format, with checks.

The checks are needed because transformers only warns about missing weights, and replaces them by random weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from pickle import PickleError
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor

from models.bundle.sources import SourceError
from models.errors import Failed, Refused, on_one_line, out_of_memory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LIBRARY_ERRORS = (
    *(OSError, ValueError, PickleError, SafetensorError, StrictDataclassError, MemoryError),
    *(LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError),
)
"""Errors that transformers, tokenizers, safetensors and torch raise while they load an encoder."""


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Convert an error that a library raises in the `with` block to a one-line `SourceError` that names `folder`.

    Raises:
        Failed: memory ran out.
    """
    try:
        yield
    except (Refused, Failed):
        raise
    except LIBRARY_ERRORS as error:
        if out_of_memory(error):
            raise Failed(f"{folder}: there is not enough memory to load it") from error
        if isinstance(error, LookupError | TypeError | AttributeError | ArithmeticError | RuntimeError):
            said = f"{type(error).__name__}: {on_one_line(error)}"
            raise SourceError(f"{folder}: a file is not in the format of transformers ({said})") from error
        if "trust_remote_code" in str(error):  # transformers itself would advise to run the code.
            raise SourceError(f"{folder}: needs code from its folder, and such code is never run") from error
        raise SourceError(f"{folder}: {on_one_line(error)}") from error


def tokenizer(folder: Path, *, lowers: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer in `folder`. `lowers` is true if the encoder's settings require lower-cased texts.

    Raises:
        SourceError: there are no tokenizer files, the tokenizer is case-sensitive although `lowers` is true, adds no
            special tokens to a text, or has no valid maximum length.
    """
    # Imported late, because the import takes seconds and is needed only to load encoders.
    from transformers import AutoTokenizer

    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    # Without files, transformers makes a tokenizer of special tokens, and of "▁" for models of T5's family.
    if set(found.get_vocab()) <= {*found.all_special_tokens, "▁"}:
        raise SourceError(f"{folder}: has no tokenizer files, or their vocabulary is empty; add its tokenizer.json")
    if lowers and _tells_case(found):
        raise SourceError(f"{folder}: do_lower_case with a case-sensitive tokenizer is not supported")
    if not isinstance(longest := found.model_max_length, int | float):
        raise SourceError(f"{folder}: its tokenizer's model_max_length must be a number, not {longest!r}")
    if not found.num_special_tokens_to_add():
        raise SourceError(
            f"{folder}: its tokenizer adds no special tokens such as [CLS], so an empty text would have no tokens"
        )
    return found


def encoder_class(folder: Path) -> Any:
    """Return the transformers class that reads the encoder in `folder`.

    For models of T5's family, the class reads the encoder without the decoder.

    Raises:
        SourceError: the model has a decoder that transformers can't leave out.
    """
    from transformers import MODEL_FOR_TEXT_ENCODING_MAPPING, AutoConfig, AutoModel, AutoModelForTextEncoding

    import models.encoder.static  # noqa: F401 - transformers knows this family only after the import

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING:
        return AutoModelForTextEncoding
    if config.is_encoder_decoder:
        raise SourceError(
            f"{folder}: {config.model_type} has a decoder; only encoders, and the encoders of T5 models, are supported"
        )
    return AutoModel


def weights(kind: Any, folder: Path, **options: Any) -> tuple[Any, Set[str], Set[str]]:
    """Load the weights in `folder` in float32 as a model of `kind`, a class of transformers.

    Return the model and two sets of tensor names. The first set has the tensors that are missing in the files, so their
    values in the model are random. The second set has the tensors of the files that the model does not have.

    Raises:
        SourceError: the shape of a tensor does not agree with config.json.
    """
    model, report = kind.from_pretrained(
        folder,
        weights_only=True,  # With this option, code in pickled weights is not run.
        dtype=torch.float32,
        output_loading_info=True,
        # Mismatches are reported below, because transformers names the tensor only in a table.
        ignore_mismatched_sizes=True,
        trust_remote_code=False,  # Without this option, transformers asks for permission on the terminal.
        **options,
    )
    if mismatched := report["mismatched_keys"]:
        name, there, said = min(mismatched)
        raise SourceError(f"{folder}: {name} is {tuple(there)}, but config.json says {tuple(said)}")
    return model, set(report["missing_keys"]), set(report["unexpected_keys"])


def check_finite(folder: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise an error if a weight is not finite, because training and export would otherwise fail later.

    Raises:
        SourceError: a weight is not finite; the message names the tensor.
    """
    for name, tensor in weights:
        if not tensor.isfinite().all():
            raise SourceError(f"{folder}: its weights contain NaN or infinity, in {name}")


def _tells_case(hub_tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer is case-sensitive.

    If `do_lower_case` is set, sentence-transformers lower-cases texts before it calls the tokenizer. This changes the
    tokens only if the tokenizer is case-sensitive.
    """
    # Tokenizers that are written in Python lack this attribute.
    backend = getattr(hub_tokenizer, "backend_tokenizer", None)
    normalizer = backend and backend.normalizer
    return normalizer is None or normalizer.normalize_str("A") != "a"
