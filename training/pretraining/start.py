"""What pre-training begins with: random weights, or those of a BERT that somebody has trained.

To go on where another left off, on text of one's own, is Gururangan et al., "Don't Stop Pretraining" (ACL 2020).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn

from models import origin
from models.declaration import declared
from models.errors import on_one_line
from models.sources import resolve
from training.config import ConfigError
from training.pretraining.config import PretrainConfig
from training.pretraining.masking import Vocabulary
from training.pretraining.model import MaskedLM

if TYPE_CHECKING:
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

HEAD = "cls."
"""Of the weights that name hidden tokens: what is published as a sentence encoder has none."""


def initial(config: PretrainConfig, device: torch.device) -> MaskedLM:
    """The model before its first step, on `device`; what is random is drawn from torch's CPU generator.

    Raises:
        SourceError: there is no such tokenizer or backbone.
        ConfigError: the tokenizer is not WordPiece; the backbone is none that can be gone on with, or of another shape.
    """
    tokenizer = _tokenizer(config)
    if config.backbone is None:
        tokenizer.model_max_length = config.max_length
        bert, known = _random(config, tokenizer), None
    else:
        folder = resolve(config.backbone)
        bert, known = _published(config, folder), origin.read(config.backbone, folder)
    nn.Module.to(bert, device)  # before it is made quick, which depends on where it lies
    return MaskedLM(bert, tokenizer, max_length=config.max_length, origin=known)


def like(backbone: str) -> dict[str, Any]:
    """The fields of a run that goes on with `backbone`: its shape, its tokenizer.

    Raises:
        SourceError: there is no such backbone.
        ConfigError: it is not a BERT.
    """
    return {"backbone": backbone, "tokenizer": backbone, **_shape(_architecture(backbone, resolve(backbone)))}


def _tokenizer(config: PretrainConfig) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    folder = resolve(config.tokenizer)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        Vocabulary.of(tokenizer)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: {config.tokenizer}: {on_one_line(error)}") from error
    return tokenizer


def _random(config: PretrainConfig, tokenizer: PreTrainedTokenizerBase) -> BertForMaskedLM:
    """Weights as BERT's: normal with a standard deviation of 0.02."""
    from transformers import BertConfig, BertForMaskedLM

    architecture = BertConfig(
        vocab_size=len(Vocabulary.of(tokenizer)),
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        max_position_embeddings=config.max_length,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertForMaskedLM(architecture)


def _published(config: PretrainConfig, folder: Path) -> BertForMaskedLM:
    """The weights in `folder`; its head, too, if it has one."""
    from transformers import AutoModelForMaskedLM

    bert: BertForMaskedLM
    architecture = _architecture(str(config.backbone), folder)
    _check(config, architecture)
    architecture.hidden_dropout_prob = architecture.attention_probs_dropout_prob = config.dropout
    try:
        fitted = declared(folder).get("transform")
        bert, report = AutoModelForMaskedLM.from_pretrained(
            folder,
            config=architecture,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"backbone: {config.backbone}: {on_one_line(error)}") from error
    if fitted:
        raise ConfigError(f"backbone: {config.backbone}: has a transform ({fitted['kind']}), which would be lost")
    if absent := sorted(name for name in report["missing_keys"] if not name.startswith(HEAD)):
        raise ConfigError(
            f"backbone: {config.backbone}: the weights lack {len(absent)} tensors of a BERT, e.g. {absent[0]}"
        )
    return bert


def _check(config: PretrainConfig, architecture: BertConfig) -> None:
    """Raises `ConfigError` for what a run says of its model and its backbone contradicts."""
    for name, value in _shape(architecture).items():
        if getattr(config, name) != value:
            raise ConfigError(f"{name}: {getattr(config, name)}, where {config.backbone} has {value}")
    if config.max_length > architecture.max_position_embeddings:
        positions = architecture.max_position_embeddings
        raise ConfigError(f"max_length: {config.max_length}, where {config.backbone} has {positions} positions")


def _architecture(backbone: str, folder: Path) -> BertConfig:
    from transformers import AutoConfig, BertConfig

    try:
        architecture = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"backbone: {backbone}: {on_one_line(error)}") from error
    if not isinstance(architecture, BertConfig):
        raise ConfigError(f"backbone: {backbone}: a {architecture.model_type}; only a BERT can be gone on with")
    return architecture


def _shape(architecture: BertConfig) -> dict[str, int]:
    """By the names of the run's fields."""
    return {
        "layers": architecture.num_hidden_layers,
        "width": architecture.hidden_size,
        "heads": architecture.num_attention_heads,
    }
