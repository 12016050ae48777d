"""Loss and gradients of runs in double precision, computed by one or several processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from models.encoder.encoder import Encoder
from training.config import RunConfig
from training.data.batches import Tokeniser
from training.encoding.views import Teacher
from training.machine.devices import Devices
from training.step import Step, initial_state, load_frozen


def another(encoder: Encoder) -> Encoder:
    """Return an encoder with other weights.

    With equal weights, a teacher's gradient would be a rounding error, and Adam's steps would depend on its signs.
    """
    drawn = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(torch.randn(weight.shape, generator=drawn, dtype=weight.dtype), alpha=0.05)
    return encoder


def compute(files: Iterable[Path]) -> None:
    """Write loss and gradients of a whole batch after two steps of nine sentences, beside each configuration."""
    torch.set_num_threads(1)
    for file in files:
        config = RunConfig.from_json(file.read_text())
        devices = Devices(config.device)
        state = initial_state(config, devices, None)
        assert isinstance(state.objective, nn.Module)
        state.encoder.double().train()
        state.objective.double()
        teacher = another(load_frozen(config.teacher, devices).double()) if config.teacher else None
        step = Step(config, state, devices, teacher, None)
        if isinstance(step._start, Teacher):
            step._start.encoder.double()
        sentences = Path(config.corpus[0]).read_text(encoding="utf-8").splitlines()
        tokenise = Tokeniser(state.encoder, teacher, max_length=32, own=devices.rows)
        for start in (0, 9):  # Of 9 sentences, one process has 4, which is a single chunk, and the other has 5.
            step(tokenise(sentences[start : start + 9]), 1e-3)
        state.optimiser.zero_grad()
        values = step.gradients(tokenise(sentences[: config.batch_size]))
        named = {**dict(state.encoder.named_parameters()), **dict(state.objective.named_parameters())}
        grads = {name: weight.grad for name, weight in named.items() if weight.grad is not None}
        save_file(grads | values, file.with_suffix(f".{devices.count}.{devices.rank}"))
