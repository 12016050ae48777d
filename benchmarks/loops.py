"""Training steps of our objectives and, for comparison, of other implementations.

The others compute in float32 on a CPU, and in bf16 autocast elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoder.encoder import Encoder
from training.checkpoints.speed import OperationCount, SpeedMeter
from training.config import RunConfig
from training.data.batches import Tokeniser
from training.machine.devices import Devices
from training.objectives.base import Needs
from training.objectives.contrastive import MLP
from training.step import Step, initial_state, load_frozen, make_meter

LENGTH = 32
"""Maximum tokens of a sentence."""


def published(texts: Iterator[Sequence[str]], backbone: Path, device: str) -> Callable[[], None]:
    """Return a function that takes a training step of SimCSE as in princeton-nlp/SimCSE.

    Both copies of the sentences are in one batch, with [CLS] pooling and a head. The loss has one direction only.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(backbone)
    model = AutoModel.from_pretrained(backbone).train().to(device)
    width = model.config.hidden_size
    head = MLP(width).to(device)
    update = _update([*model.parameters(), *head.parameters()])

    def step() -> None:
        batch = [text for text in next(texts) for _ in range(2)]
        inputs = tokenizer(batch, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt").to(device)
        with _autocast(device):
            pooled = head(model(**inputs).last_hidden_state[:, 0]).view(-1, 2, width).float()
        logits = F.cosine_similarity(pooled[:, None, 0], pooled[None, :, 1], dim=-1) / 0.05
        update(F.cross_entropy(logits, torch.arange(len(logits), device=device)))

    return step


def sentence_transformers(texts: Iterator[Sequence[str]], backbone: Path, device: str) -> Callable[[], None]:
    """Return a function that takes a training step of MultipleNegativesRankingLoss on pairs (text, text)."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(backbone), device=device).train()
    model.max_seq_length = LENGTH
    loss = MultipleNegativesRankingLoss(model)
    update = _update(list(model.parameters()))

    def features(batch: Sequence[str]) -> dict[str, Any]:
        found = model.preprocess(list(batch)).items()
        return {name: each.to(device) if isinstance(each, Tensor) else each for name, each in found}

    def step() -> None:
        batch = next(texts)
        with _autocast(device):
            value = loss([features(batch) for _ in range(2)], torch.empty(0))
        update(value)

    return step


def ours(
    config: RunConfig, texts: Iterator[Sequence[str]], device: str, autocast: torch.dtype | None
) -> tuple[Callable[[], Mapping[str, Tensor]], SpeedMeter]:
    """Return a function that takes a training step of a run, and the meter of its speed.

    If the objective needs a teacher, the backbone is the teacher.
    """
    devices = Devices(device)
    state = initial_state(config, devices, autocast)
    state.encoder.train()
    teacher = load_frozen(config.backbone, devices, pooling="cls") if state.objective.needs.teacher else None
    step = Step(config, state, devices, teacher, autocast)
    tokenise = Tokeniser(state.encoder, teacher, max_length=LENGTH, own=devices.rows)
    meter = make_meter(state, teacher, devices, autocast)
    return lambda: step(tokenise(next(texts)), config.learning_rate), meter


def peer_meter(backbone: str | Path, peak: float) -> SpeedMeter:
    """Return the meter of a peer's speed, which trains the whole backbone with two views."""
    work = OperationCount.of(Encoder.load(backbone, pooling="cls"))
    return SpeedMeter(needs=Needs(), work=work, teacher=None, peak=peak)


PEERS = {"published": published, "sentence_transformers": sentence_transformers}


def _autocast(device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16, enabled=device != "cpu")


def _update(weights: list[nn.Parameter]) -> Callable[[Tensor], None]:
    optimiser = torch.optim.AdamW(weights, lr=3e-5, weight_decay=0.0, fused=True)

    def update(loss: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()

    return update
