"""Encoders of known sizes with random weights, because speed does not depend on trained weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from models.bundle.sources import SourceError, resolve
from models.encoder.encoder import Encoder
from models.export.export import export
from models.python_docs import sections

VOCABULARY = 30_522
"""Vocabulary size of BERT."""
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


class Shape(NamedTuple):
    """The sizes of a BERT model."""

    layers: int
    width: int
    heads: int
    max_length: int


MINILM = Shape(6, 384, 12, 256)
BERT_BASE = Shape(12, 768, 12, 512)
BERT_SMALL = Shape(4, 512, 8, 128)
"""Sizes of google/bert_uncased_L-4_H-512_A-8, for training on sequences of 128 tokens."""
TINY = Shape(2, 32, 2, 64)


def backbone(shape: Shape, folder: Path) -> Path:
    """Save a BERT of this shape with random weights from a fixed seed, and return its folder."""
    tokenizer = _tokenizer()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        max_position_embeddings=shape.max_length,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bundle(shape: Shape, folder: Path) -> Path:
    """Export a BERT of this shape with mean pooling to a bundle with graphs in float32 and float16."""
    weights = backbone(shape, folder / "backbone")
    encoder = Encoder.load(weights, pooling="mean", max_length=shape.max_length)
    return export(encoder, folder / "bundle", name="random", backbone="random", fp16_graph=True).folder


def _tokenizer() -> PreTrainedTokenizerFast:
    try:
        folder = resolve("minilm")
    except SourceError:
        return _made()
    found: Any = AutoTokenizer.from_pretrained(folder)
    return found  # type: ignore[no-any-return]


def _made() -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer with a vocabulary of BERT's size, trained on CPython's documentation."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=list(SPECIAL.values()))
    tokenizer.train_from_iterator((section.text for section in sections()), trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **SPECIAL)  # type: ignore[no-untyped-call]
