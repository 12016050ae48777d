"""Tests of language models in their authors' layout on the hub, including heads and old names.

BERT-base and RoBERTa-base have two of their twelve layers and random weights here, because the published weights can't
be downloaded offline. The same code loads the published ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from torch import Tensor

from models.encoder.encoder import Encoder
from tests.conftest import WORDS
from tests.training.conftest import configured, fit

pytestmark = pytest.mark.slow


def bert_tokenizer(folder: Path, sentences: Sequence[str]) -> None:
    """Write 30,522 word pieces in the published order, and `vocab.txt`, as in the published folder."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["[PAD]", *(f"[unused{i}]" for i in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,!?", *letters]
    pieces = list(dict.fromkeys([*known, *WORDS, *(f"##{letter}" for letter in letters)]))
    pieces += [f"[filler{i}]" for i in range(30522 - len(pieces))]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in pieces))
    BertWordPieceTokenizer(str(vocabulary), lowercase=True).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512}')


def roberta_tokenizer(folder: Path, sentences: Sequence[str]) -> None:
    """Write a tokenizer of bytes and of frequent pieces of the sentences."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(sentences, 400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')


def old_names(name: str) -> str:
    """Return TensorFlow's names, which BERT's LayerNorm still has."""
    return re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name))


@dataclass(frozen=True)
class Layout:
    """A published layout. `config` is the content of the published file."""

    name: str
    kind: str
    config: dict[str, Any]
    tokenizer: Callable[[Path, Sequence[str]], None]
    named: Callable[[str], str] = str

    def write(self, folder: Path, sentences: Sequence[str]) -> Callable[[Tensor], Tensor]:
        """Write the files, and return transformers' function from token ids (n, L) to the last layer (n, L, D)."""
        self.tokenizer(folder, sentences)
        (folder / "config.json").write_text(json.dumps(self.config))
        torch.manual_seed(0)
        config = transformers.AutoConfig.from_pretrained(folder)
        model = getattr(transformers, self.kind)(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "LayerNorm" in name:
                    weight.add_(torch.randn_like(weight), alpha=0.1)
        tied = ("decoder.weight", "decoder.bias")
        weights = {self.named(name): each for name, each in model.state_dict().items() if not name.endswith(tied)}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        base = model.base_model
        return lambda ids: base(input_ids=ids).last_hidden_state


SIZE = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 2,
}
LAYOUTS = [
    Layout(
        "bert-base-uncased",
        "BertForPreTraining",
        {
            **SIZE,
            "architectures": ["BertForMaskedLM"],
            "gradient_checkpointing": False,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "bert",
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "transformers_version": "4.6.0.dev0",
            "type_vocab_size": 2,
            "use_cache": True,
            "vocab_size": 30522,
        },
        bert_tokenizer,
        old_names,
    ),
    Layout(
        "roberta-base",
        "RobertaForMaskedLM",
        {
            **SIZE,
            "architectures": ["RobertaForMaskedLM"],
            "bos_token_id": 0,
            "eos_token_id": 2,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 514,
            "model_type": "roberta",
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "vocab_size": 50265,
        },
        roberta_tokenizer,
    ),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_it_is_read_and_trained_from(layout: Layout, sentences: list[str], tmp_path: Path) -> None:
    folder = tmp_path / layout.name
    folder.mkdir()
    published = layout.write(folder, sentences)

    encoder = Encoder.load(folder)
    assert (encoder.max_length, encoder.dim, encoder.pooling) == (512, 768, "cls")
    ids, mask = encoder.tensors(encoder.tokenizer.encode(sentences[:1]))
    assert mask.all() and ids.numel() > 3
    with torch.no_grad():
        first = published(ids)[:, 0]
    np.testing.assert_allclose(encoder.encode(sentences[:1]), first.numpy(), rtol=1e-4, atol=1e-4)

    corpus = tmp_path / "few.txt"
    corpus.write_text("\n".join(sentences[:40]))
    config = configured(folder, corpus, tmp_path, batch_size=4, max_steps=1, eval_every=1)
    assert config.preset == layout.name, "the papers' own settings for it"
    outcome, said = fit(config)
    assert outcome.steps == 1 and "step 1: " in said
