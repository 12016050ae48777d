from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tests.conftest import soon
from training.checkpoints.checkpoint import State
from training.config import ConfigError, RunConfig
from training.data.batches import Batch, Tokeniser
from training.machine.devices import Devices
from training.machine.graphs import RUNS_BEFORE_RECORDING
from training.machine.hardware import autocast_dtype
from training.objectives import OBJECTIVES
from training.objectives.base import Needs, Objective, Views
from training.step import Step, can_record, initial_state, load_frozen, set_learning_rate

MakeConfig = Callable[..., RunConfig]
Started = tuple[State, Step, Callable[[Sequence[str]], Batch]]


def started(config: RunConfig, *, teacher: Path | None = None) -> Started:
    devices = Devices(config.device)
    autocast = autocast_dtype(config.precision, devices.device)
    state = initial_state(config, devices, autocast)
    taught = load_frozen(str(teacher), devices) if teacher else None
    state.encoder.train()
    step = Step(config, state, devices, taught, autocast)
    return state, step, Tokeniser(state.encoder, taught, max_length=config.max_length, own=devices.rows)


def weights(state: State) -> list[Tensor]:
    return [weight.detach().clone() for group in state.optimiser.param_groups for weight in group["params"]]


class Scripted(Objective):
    """Objective with a simple loss, multiplied by a given factor at each call."""

    needs = Needs()
    factors: Sequence[float] = ()

    def __init__(self, params: Any, dim: int) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        self.calls += 1
        return {"plain": views.noisy.square().mean() * self.factors[self.calls - 1]}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setitem(OBJECTIVES, "scripted", replace(OBJECTIVES["simcse"], build=Scripted))
    return Scripted


def test_the_loss_is_the_sum_of_its_terms(make_config: MakeConfig, sentences: list[str]) -> None:
    config = replace(make_config(), objective="imsimcse", params=narrow("imsimcse"))
    _, step, tokenise = started(config)
    values = step.gradients(tokenise(sentences[:8]))
    assert values.keys() == {"info_nce", "dcl", "loss"}
    assert values["loss"].item() == pytest.approx(values["info_nce"].item() + values["dcl"].item())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("clip_norm", [0.01, 1e3])
def test_a_gradient_is_cut_to_the_length_it_may_have_and_its_own_is_told(
    clip_norm: float, precision: str, make_config: MakeConfig, scripted: type[Scripted], sentences: list[str]
) -> None:
    scripted.factors = [1, 1]
    config = make_config(objective="scripted", precision=precision, clip_norm=clip_norm)
    state, step, tokenise = started(config)
    batch = tokenise(sentences[:8])
    told = step(batch, 0.0)["gradient_norm"].item()
    found = [weight.grad for group in state.optimiser.param_groups for weight in group["params"]]
    length = torch.stack([gradient.norm() for gradient in found if gradient is not None]).norm().item()
    assert 0.01 < told < 1e3
    assert length == pytest.approx(min(told, clip_norm), rel=1e-3)


def test_a_step_is_as_long_as_it_is_told(
    make_config: MakeConfig, scripted: type[Scripted], sentences: list[str]
) -> None:
    """Check the first step of Adam, whose length is the learning rate for any weight with a gradient."""
    scripted.factors = [1]
    state, step, tokenise = started(make_config(objective="scripted", learning_rate=1e-3))
    before = weights(state)
    step(tokenise(sentences[:8]), 1e-5)
    longest = max((a - b).abs().max().item() for a, b in zip(before, weights(state), strict=True))
    assert longest == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_after_a_loss_that_is_no_number_no_weight_changes_any_more(
    odd: float, precision: str, make_config: MakeConfig, scripted: type[Scripted], sentences: list[str]
) -> None:
    scripted.factors = [1, 1, odd, 1, 1]
    state, step, tokenise = started(make_config(objective="scripted", precision=precision))
    kept: list[list[Tensor]] = []
    losses = []
    for _ in range(5):
        losses.append(step(tokenise(sentences[:8]), 1e-3)["loss"].item())
        kept.append(weights(state))
    moved = [any(not torch.equal(a, b) for a, b in zip(x, y, strict=True)) for x, y in pairwise(kept)]
    assert moved == [True, False, False, False]
    assert [math.isfinite(loss) for loss in losses] == [True, True, False, False, False]
    assert all(torch.isfinite(weight).all() for weight in kept[-1])


def test_norms_and_biases_do_not_decay(make_config: MakeConfig, scripted: type[Scripted], sentences: list[str]) -> None:
    scripted.factors = [0]  # Without a gradient, no weight changes.
    state, step, tokenise = started(make_config(objective="scripted", weight_decay=0.5))
    before = {name: weight.detach().clone() for name, weight in state.encoder.named_parameters()}
    step(tokenise(sentences[:8]), 0.1)
    decayed = {name for name, weight in state.encoder.named_parameters() if not torch.equal(weight, before[name])}
    assert decayed == {name for name in before if not name.endswith("bias") and "LayerNorm" not in name}


class Steep(Objective):
    """Objective with a simple loss, whose gradient is NaN at the third call."""

    needs = Needs()

    def __init__(self, params: Any, dim: int) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        self.calls += 1
        plain = views.noisy.square().mean()
        if self.calls == 3:
            plain.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]
        return {"plain": plain}


def test_a_gradient_that_is_no_number_is_told_and_leaves_weights_and_moments(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, sentences: list[str]
) -> None:
    monkeypatch.setitem(OBJECTIVES, "steep", replace(OBJECTIVES["simcse"], build=Steep))
    state, step, tokenise = started(make_config(objective="steep"))
    values, kept = [], []
    for _ in range(4):
        values.append(step(tokenise(sentences[:8]), 1e-3))
        moments = [x.clone() for each in state.optimiser.state.values() for x in each.values()]
        kept.append([*weights(state), *moments])
    assert [math.isfinite(each["loss"]) for each in values] == [True, True, True, False]
    assert [math.isfinite(each["gradient_norm"]) for each in values] == [True, True, False, False]
    same = [all(torch.equal(a, b) for a, b in zip(x, y, strict=True)) for x, y in pairwise(kept)]
    assert same == [False, True, True]


def test_fp16_skips_an_update_whose_gradient_is_out_of_range_and_goes_on(
    make_config: MakeConfig, scripted: type[Scripted], sentences: list[str]
) -> None:
    scripted.factors = [1, 1e30, 1]
    state, step, tokenise = started(make_config(objective="scripted", precision="fp16"))
    kept = [weights(state)]
    for _ in range(3):
        step(tokenise(sentences[:8]), 1e-3)
        kept.append(weights(state))
    same = [all(torch.equal(a, b) for a, b in zip(x, y, strict=True)) for x, y in pairwise(kept)]
    assert same == [False, True, False]
    assert state.scaler.get_scale() == 2**15, "halved once"


@pytest.mark.parametrize(
    "changes", soon([{"precision": "bf16"}, {"precision": "fp16"}, {"dropout": 0.3}], "{'dropout': 0.3}")
)
def test_a_few_steps_lower_the_loss(changes: dict[str, Any], make_config: MakeConfig, sentences: list[str]) -> None:
    _, step, tokenise = started(make_config(**changes))
    losses = [step(tokenise(sentences[:32]), 1e-3)["loss"].item() for _ in range(15)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


@pytest.mark.parametrize("chunk_size", [1, 5, 100])
def test_a_batch_in_chunks_has_the_gradient_of_the_whole(
    chunk_size: int, make_config: MakeConfig, sentences: list[str], tiny_backbone: Path
) -> None:
    """Compare without dropout, which is drawn for each pass. test_caching compares with dropout."""
    found = []
    for size in (None, chunk_size):
        config = make_config(dropout=0.0, augmentation="span-cutoff", augmentation_rate=0.0, chunk_size=size)
        state, step, tokenise = started(config)
        state.objective.double()
        state.encoder.double()
        values = step.gradients(tokenise(sentences[:16]))
        found.append(([w.grad for group in state.optimiser.param_groups for w in group["params"]], values["loss"]))
    (whole, loss), (parts, same) = found
    torch.testing.assert_close(same, loss, rtol=1e-10, atol=0)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-12)


def test_views_that_nothing_tells_apart_are_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"dropout: .* has none, .* --set dropout=0.1"):
        started(make_config(dropout=0.0))
    started(make_config(dropout=0.0, augmentation="token-cutoff"))


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of operations that would wait for a device, such as reading a number from a tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_a_step_waits_for_nothing(
    objective: str, make_config: MakeConfig, sentences: list[str], tiny_backbone: Path
) -> None:
    config = replace(make_config(precision="bf16"), objective=objective, params=narrow(objective))
    _, step, tokenise = started(config, teacher=tiny_backbone)
    batch = tokenise(sentences[:8])
    step(batch, 1e-3)  # The optimiser creates its moments in this step.
    with Waits() as waits:
        step(batch, 1e-3)
    assert waits.seen == []


class Graph:
    """Fake graph that does nothing."""

    made: ClassVar[list[Callable[[], object]]] = []

    def __init__(self) -> None:
        self.made.append(weakref.ref(self))

    def register_generator_state(self, generator: torch.Generator) -> None: ...

    def replay(self) -> None: ...


@pytest.fixture
def _recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.step.can_record", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    for name in ("graph_pool_handle", "Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(Graph, "made", [])


@pytest.mark.parametrize("recorded", [False, True])
def test_a_step_goes_with_its_run(
    recorded: bool, make_config: MakeConfig, sentences: list[str], request: pytest.FixtureRequest
) -> None:
    """Check that a step is freed at once. A reference cycle would keep it until garbage collection."""
    if recorded:
        request.getfixturevalue("_recordable")
    state, step, tokenise = started(make_config())
    for _ in range(RUNS_BEFORE_RECORDING + 2):
        step(tokenise(sentences[:8]), 1e-3)
    assert len(Graph.made) == recorded
    gone: list[Callable[[], object]] = [weakref.ref(step), weakref.ref(state.optimiser), *Graph.made]
    gc.collect()
    gc.disable()
    try:
        del state, step
        assert not any(each() for each in gone)
    finally:
        gc.enable()


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_what_is_copied_to_be_recorded_is_put_back_in_its_place(
    objective: str, make_config: MakeConfig, sentences: list[str], tiny_backbone: Path
) -> None:
    config = replace(make_config(), objective=objective, params=narrow(objective))
    _, step, tokenise = started(config, teacher=tiny_backbone)
    placed = step._on_device(tokenise(sentences[:8]))
    copied = tree_map_only(Tensor, Tensor.clone, placed)
    assert (copied.own, copied.sentences) == (placed.own, placed.sentences)
    for one, other in zip(placed.passes, copied.passes, strict=True):
        assert all(torch.equal(a, b) and a is not b for a, b in zip(one[:3], other[:3], strict=True))
    for one_frozen, other_frozen in ((placed.teacher, copied.teacher), (placed.start, copied.start)):
        assert (one_frozen is None) == (other_frozen is None)
        assert one_frozen is None or (other_frozen is not None and torch.equal(one_frozen, other_frozen))


def test_a_rate_on_the_device_stays_where_it_is() -> None:
    weight, rate = nn.Parameter(torch.ones(2)), torch.tensor(1.0)
    optimiser = torch.optim.AdamW([weight], lr=rate, fused=True)
    set_learning_rate(optimiser, 0.25)
    assert optimiser.param_groups[0]["lr"] is rate and rate.item() == 0.25


def test_a_step_is_recorded_on_cuda_where_nobody_else_has_a_part_in_it(make_config: MakeConfig) -> None:
    def recorded(config: RunConfig, *, device: str = "cuda", count: int = 1, family: str = "bert") -> bool:
        devices = Devices("cpu")
        autocast = autocast_dtype(config.precision, devices.device)
        state = initial_state(replace(config, compile=False), devices, autocast)
        setattr(state.encoder.backbone.config, "model_type", family)  # noqa: B010 - a class variable, to mypy
        devices.device, devices.count = torch.device(device), count
        return can_record(config, state, devices)

    plain = make_config()
    assert recorded(plain) and recorded(make_config(precision="bf16"))
    assert not recorded(plain, device="cpu")
    assert not recorded(plain, count=2)
    assert not recorded(plain, family="mpnet")
    for changes in ({"precision": "fp16"}, {"chunk_size": 4}, {"compile": True}, {"augmentation": "token-cutoff"}):
        assert not recorded(make_config(**changes)), changes
    for objective, params, alone in (
        ("whitenedcse", narrow("whitenedcse"), True),
        ("whitenedcse", replace(narrow("whitenedcse"), groups=8), False),  # Groups of four channels need eigenvectors.
        ("whitenedcse", replace(narrow("whitenedcse"), whitening="zca"), False),
        ("imsimcse", replace(narrow("imsimcse"), barlow_weight=0.1), False),
        ("distillation", narrow("distillation"), False),
        ("dclr", narrow("dclr"), True),
    ):
        assert recorded(replace(plain, objective=objective, params=params)) == alone, params


@pytest.mark.parametrize("recorded", [False, True])
def test_what_can_be_recorded_is(
    recorded: bool, make_config: MakeConfig, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the random generators that the recording knows, which include the objective's own."""
    made: list[Sequence[torch.Generator]] = []

    class Launching:
        def __init__(self, draws: Sequence[torch.Generator]) -> None:
            made.append(draws)

        def __call__(self, compute: Callable[[Any], dict[str, Tensor]], given: Any) -> dict[str, Tensor]:
            return {**compute(given), "through": torch.ones(())}

    monkeypatch.setattr("training.step.can_record", lambda *_: recorded)
    monkeypatch.setattr("training.step.CudaGraphs", Launching)
    state, step, tokenise = started(make_config())
    assert ("through" in step(tokenise(sentences[:8]), 1e-3)) == recorded
    assert made == ([[state.rng]] if recorded else [])


def narrow(objective: str) -> Any:
    """Return the published parameters, adjusted to the width of the tiny backbone."""
    params = OBJECTIVES[objective].presets["minilm"].params
    params = replace(params, head=True) if hasattr(params, "head") else params
    return replace(params, groups=16) if hasattr(params, "groups") else params
