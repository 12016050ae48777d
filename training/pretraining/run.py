"""A whole pre-training run, from a configuration to a model folder for `train --backbone`."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from huggingface_hub import ModelCardData
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from models.bundle.disk import naming, replacing_folder, restore_folder, write_whole
from models.bundle.origin import Origin
from models.encoder.encoder import dropout_off, save_tokenizer
from training.checkpoints import checkpoint, record
from training.checkpoints.progress import Progress
from training.checkpoints.publish import corpus_counts
from training.checkpoints.record import RunError, WriteMetrics
from training.checkpoints.speed import FIGURES, matmul_peak
from training.config import ConfigError
from training.data.corpus import Census, Corpus, open_corpus
from training.encoding.views import autocast, to_device
from training.loop import DivergedError, TakenStep, format_terms, is_finite, run_to_end
from training.machine.devices import Devices
from training.machine.graphs import CudaGraphs
from training.machine.hardware import autocast_dtype, environment, precision_name
from training.machine.interrupt import locked
from training.machine.state_file import optimiser_tensors, restore_optimiser, with_prefix, without_prefix
from training.pretraining.batches import START, Batch, Batches, Position
from training.pretraining.config import PretrainConfig
from training.pretraining.model import MaskedLM, MaskedTokens, build_model
from training.run import check_writable, run_environment
from training.step import adamw, set_learning_rate

RECORD = "pretraining.json"
"""Name of the file in the model's folder that records the run."""


def fit(config: PretrainConfig, stream: TextIO, *, resume: bool = False) -> State:
    """Train according to `config`, and return the final state.

    The record goes to `config.run`, the model to `config.out`, and progress to `stream`. With several processes, only
    the first one reports and writes.

    Raises:
        RunError: the run's folder already has a run and `resume` is false; or the model can't be written.
        ValueError: the tokenizer or the corpus is not usable. The error is of a subclass that this package defines,
            and its message names the file or option.
        LockError: another process works on the run.
        HardwareError: the run has several processes, and their machines do not share the run's folder.
        DivergedError, InterruptedRun: see `training.loop.run_to_end`.
    """
    devices = Devices(config.device)
    if config.batch_size % devices.count:
        raise ConfigError(
            f"batch_size: {config.batch_size} sequences can't be divided equally among {devices.count} processes"
        )
    if devices.first:
        check(Path(config.out))
        if not resume:
            record.check_no_run(Path(config.run))
    corpus = open_corpus(config.corpus, column=config.text_column)
    torch.manual_seed(config.seed)
    run = Pretraining(config, corpus, devices)
    with locked(run.folder) if devices.first else nullcontext():
        if devices.first and not resume:
            record.create_run(config, run_environment(corpus, devices, run.precision))
        devices.wait_for(run.folder / record.CONFIG)
        torch.manual_seed(devices.own_seed(config.seed))  # The seed fixes dropout.
        checkpoint.load(run.state, run.folder, devices, corpus=corpus.census.digest)

        run_to_end(run, _headline(run), stream if devices.first else io.StringIO())
        if devices.first:
            publish(config, run.state.model, corpus.census)
        devices.wait()
    return run.state


# The step of pre-training (loss, gradient, update), and evaluation on held-out batches.


@dataclass
class State:
    """Everything that changes during pre-training.

    The position in the corpus is a part of the state, because the number of sentences per step varies.
    """

    model: MaskedLM
    optimiser: torch.optim.Optimizer
    step: int = 0
    position: Position = START
    """Position of the next step in the corpus."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digests of inputs other than the corpus. Pre-training has no such inputs."""
    frozen: str = ""

    def facts(self) -> dict[str, Any]:
        return {"step": self.step, "position": self.position}

    def tensors(self) -> dict[str, Tensor]:
        # named_parameters yields tied weights only once.
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        return with_prefix("model.", weights) | optimiser_tensors(self.optimiser)

    def restore_facts(self, facts: Mapping[str, Any]) -> None:
        self.step, self.position = facts["step"], Position(*facts["position"])

    def restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        weights = without_prefix("model.", tensors)
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(weights[name])
        restore_optimiser(self.optimiser, tensors)


class DeviceBatch(NamedTuple):
    """A batch on the device of this process."""

    chunks: Sequence[MaskedTokens]
    hidden: Tensor
    """Number of masked tokens in the whole batch, or 1 if there are none, ()."""


class Step:
    """A function that updates weights from a batch, without waiting for the device.

    Each process computes a part of the batch, in chunks. The loss is the mean over the masked tokens of all parts.
    """

    def __init__(
        self,
        state: State,
        devices: Devices,
        *,
        clip_norm: float,
        precision: torch.dtype | None,
        record: bool = False,
    ) -> None:
        """Set up the training step.

        `precision` is the dtype of matrix products, or None for float32. With `record`, the step is recorded as a CUDA
        graph.
        """
        self._state = state
        self._devices = devices
        self._clip_norm = clip_norm
        self._precision = precision
        self._model = devices.parallel(state.model)
        self._graphs: CudaGraphs[DeviceBatch] | None = CudaGraphs() if record else None

    def __call__(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        """Update the model. Return `loss`, `accuracy` and `gradient_norm` (before clipping) as scalars."""
        set_learning_rate(self._state.optimiser, learning_rate)
        placed = self.on_device(batch)
        return self._graphs(self._update_from, placed) if self._graphs else self._update_from(placed)

    def on_device(self, batch: Batch) -> DeviceBatch:
        device = self._devices.device
        return DeviceBatch(
            [chunk.to(device) for chunk in batch.chunks], to_device(np.array(max(batch.hidden, 1)), device)
        )

    def _update_from(self, placed: DeviceBatch) -> dict[str, Tensor]:
        optimiser = self._state.optimiser
        optimiser.zero_grad(set_to_none=True)
        values = self.gradients(placed)
        norm = clip_grad_norm_(self._state.model.parameters(), self._clip_norm)
        optimiser.step()
        return {**values, "gradient_norm": norm}

    def gradients(self, placed: DeviceBatch) -> dict[str, Tensor]:
        """Add the gradient of the loss to `grad` of every weight. Return `loss` and `accuracy` of the whole batch."""
        found = torch.zeros(2, device=self._devices.device)
        *others, last = placed.chunks
        for chunk in others:
            with self._devices.no_sync(self._model):
                found += self._backward(chunk, placed.hidden)
        found += self._backward(last, placed.hidden)
        self._devices.average([found])
        loss, accuracy = found
        return {"loss": loss, "accuracy": accuracy}

    def _backward(self, chunk: MaskedTokens, hidden: Tensor) -> Tensor:
        """Backpropagate the loss of a chunk, and return its contributions to the batch's loss and accuracy, (2,).

        `hidden` is the number of masked tokens in the whole batch. The contributions are divided by this number. They
        are multiplied by the number of processes, because the caller averages them over the processes.
        """
        loss, right = _answered(self._model, self._state.model, chunk, self._precision)
        # The average over processes divides by their number, so the loss is multiplied by this number.
        count = self._devices.count
        (loss * count / hidden).backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), right.float()]) * count / hidden


def evaluate(model: MaskedLM, held_out: Iterable[MaskedTokens], precision: torch.dtype | None) -> dict[str, float]:
    """Return `masked_loss`, in nats per token, and `masked_accuracy`, the share of correct predictions."""
    loss = right = count = 0.0
    with torch.no_grad(), dropout_off(model):
        for chunk in held_out:
            found = _answered(model, model, chunk.to(model.encoder.device), precision)
            loss, right, count = loss + found[0].item(), right + found[1].item(), count + chunk.answered
    return {"masked_loss": loss / max(count, 1), "masked_accuracy": right / max(count, 1)}


def _answered(
    run: nn.Module, model: MaskedLM, chunk: MaskedTokens, precision: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Return the summed loss and the number of correct predictions for a chunk.

    `run` is the model or its data-parallel wrapper.
    """
    with autocast(model.encoder, precision):
        answer: tuple[Tensor, Tensor] = run(*chunk)
    return answer


class Pretraining:
    """A run that trains a masked language model."""

    def __init__(self, config: PretrainConfig, corpus: Corpus, devices: Devices) -> None:
        """Build the run in its state before the first step: model, optimiser, batches and step function."""
        model = build_model(config, devices.device)
        optimiser = adamw(model.parameters(), learning_rate=config.learning_rate, weight_decay=config.weight_decay)
        self.config, self.devices, self.state = config, devices, State(model, optimiser)
        self.folder, self.total_steps, self.eval_every = Path(config.run), config.steps, config.eval_every
        self.precision = autocast_dtype(config.precision, devices.device)
        self.step = Step(
            self.state,
            devices,
            clip_norm=config.clip_norm,
            precision=self.precision,
            # Chunks are not recorded as CUDA graphs, because their numbers of masked tokens vary.
            record=devices.single_cuda and config.chunk_size is None,
        )
        self.training = Batches(config, model, corpus, devices)
        self.held_out = self.training.held_out()
        self.corpus = corpus
        self.work = model.work(config.share)
        self.peak = matmul_peak(devices.device, self.precision or torch.float32) * devices.count

    @property
    def module(self) -> MaskedLM:
        return self.state.model

    def batches(self) -> Iterator[Batch]:
        return self.training.after(self.state.step, self.state.position)

    def learning_rate(self, step: int) -> float:
        return self.config.rate(step)

    def snapshot(self) -> None:
        """Return None, because pre-training does not store diverged steps."""

    def take(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        values = self.step(batch, learning_rate)
        self.state.position = batch.position
        return values

    def speed(self, steps: Sequence[tuple[int, Batch]], seconds: float) -> dict[str, float]:
        """Compute sentences, tokens and operations per second, and the utilisation of the devices.

        If a sentence is divided, each part counts as a sentence. A backward pass counts as many operations as two
        forward passes.
        """
        lengths = [length for _, batch in steps for length in batch.lengths]
        operations = 3 * self.work.forward(lengths) / seconds
        figures = (len(lengths) / seconds, sum(lengths) / seconds, operations, operations / self.peak)
        return dict(zip(FIGURES, figures, strict=True))

    def check(self, taken: TakenStep[Batch], values: Mapping[str, float]) -> None:
        _check_finite(taken.step, values)

    def evaluate(self, record: WriteMetrics, progress: Progress) -> None:
        """Evaluate the model in the first process. The other processes wait for this process at the next step.

        Raises:
            DivergedError: the loss is not finite.
        """
        if not self.devices.first:
            return
        step, scores = self.state.step, evaluate(self.state.model, self.held_out, self.precision)
        _check_finite(step, scores)
        record("evaluation", step, scores)
        progress.say(f"step {step}: {format_terms({name: round(value, 4) for name, value in scores.items()})}")

    def save(self) -> None:
        checkpoint.save(self.state, self.folder, self.devices, corpus=self.corpus.census.digest)


def _check_finite(step: int, values: Mapping[str, float]) -> None:
    if not is_finite(values):
        raise DivergedError(f"step {step}: {format_terms(values)}; start a new run with a lower learning_rate")


def _headline(run: Pretraining) -> str:
    config, state, corpus = run.config, run.state, run.corpus
    millions = sum(weight.numel() for weight in state.model.parameters()) / 1e6
    begin = f", from step {state.step}" if state.step else ""
    return (
        f"a BERT of {config.layers} layers, {config.width} wide, {millions:.1f} million weights"
        f"{f' of {config.backbone}' if config.backbone else ''}: "
        f"{corpus.census.sentences} sentences of {corpus.name}, {config.steps} steps of {config.batch_size} sequences "
        f"of {config.max_length} tokens{begin}, {precision_name(run.precision)} on {run.devices.device}"
    )


# The output folder of a run in transformers' format, with a record of the run.


def check(folder: Path) -> None:
    """Check that a model can be written to the folder.

    A folder with a pre-trained model is accepted. The function `publish` replaces this model.

    Raises:
        RunError: the folder has other content, or can't be written.
    """
    if folder.is_symlink():
        raise RunError(f"--out {folder}: a link to {folder.readlink()}; name the folder itself")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        _refuse_foreign(folder)
    if folder.name in ("", ".."):
        raise RunError(
            f"--out {folder}: is the working folder, which can't be replaced: run the command in the folder above "
            "and name it"
        )
    check_writable(folder)


def publish(config: PretrainConfig, model: MaskedLM, census: Census) -> None:
    """Write model, tokenizer, record and card to `config.out` atomically.

    Raises:
        RunError: `config.out` has other content than a pre-trained model, or can't be written.
    """
    curve, out = record.evaluations(Path(config.run)), Path(config.out)
    restore_folder(out)
    # The check is repeated, because the folder's content is deleted and may have changed during the long run.
    check(out)
    with naming(out), replacing_folder(out) as draft:
        model.bert.save_pretrained(draft, max_shard_size="100GB")
        save_tokenizer(model.tokenizer, draft)
        write_whole(draft / "README.md", _page(config, model.encoder.origin, census, curve))
        made = {
            "config": asdict(config),
            "environment": environment(),
            "corpus": corpus_counts(census),
            "curve": curve,
            "files": sorted(_files(draft)),
        }
        write_whole(draft / RECORD, json.dumps(made, indent=2) + "\n")


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder with files that no pre-training run has written, because replacing the folder deletes them.

    Raises:
        RunError: the folder has no record of a pre-training run, or has a file that this record does not list.
    """
    if not (folder / RECORD).is_file():
        raise RunError(f"{folder} exists and is not a pre-trained model: choose another --out")
    if foreign := sorted(_files(folder) - _written(folder / RECORD)):
        raise RunError(
            f"{folder / foreign[0]}: not a file of the pre-trained model, so the folder is not replaced: choose "
            "another --out"
        )


def _written(file: Path) -> set[str]:
    try:
        return {RECORD, *json.loads(file.read_text(encoding="utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(
            f"{file}: does not list the files of the model, so the folder is not replaced: choose another --out"
        ) from None


def _files(folder: Path) -> set[str]:
    """Return the relative paths of all files and links."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def _page(config: PretrainConfig, origin: Origin, census: Census, curve: Sequence[Mapping[str, float]]) -> str:
    start = f"the weights of {config.backbone}" if config.backbone else "random weights"
    cited = "".join(f"\n```bibtex\n{entry.strip()}\n```\n" for entry in origin.citations)
    corpus = " ".join(Path(file).name for file in config.corpus) or "the documentation inside CPython"
    return f"""---
{_metadata(origin).to_yaml()}
---

# {Path(config.out).resolve().name}

A BERT of {config.layers} layers, {config.width} wide, with {config.heads} heads, pre-trained from {start}
by Isosphere as a masked language model: whole words, {config.share:.0%} of the tokens, {config.steps} steps of
{config.batch_size} sequences of {config.max_length} tokens.
Corpus: {census.sentences} sentences of {corpus}.

{_judged(config, census, curve)}`{RECORD}` has the configuration, the machine and the curve.

It is not yet a sentence encoder: `isosphere train simcse --backbone {shlex.quote(config.out)}` makes one.
{cited}"""


def _metadata(origin: Origin) -> ModelCardData:
    """Return the model card's metadata for the hub, with the backbone's licence and languages."""
    return ModelCardData(
        base_model=list(origin.base_models) or None,
        language=list(origin.languages) or None,
        license=origin.licence.get("license"),
        license_name=origin.licence.get("license_name"),
        license_link=origin.licence.get("license_link"),
        library_name="transformers",
        pipeline_tag="fill-mask",
    )


def _judged(config: PretrainConfig, census: Census, curve: Sequence[Mapping[str, float]]) -> str:
    """Return a text for the model card about the last evaluation. It is empty if the run's metrics are lost."""
    last = [each for each in curve if each["step"] == config.steps]
    if not last:
        return ""
    loss, accuracy = last[-1]["masked_loss"], last[-1]["masked_accuracy"]
    return (
        f"On {len(census.monitored)} held-out sentences: {loss:.4f} nats per masked token, "
        f"{accuracy:.1%} of them\npredicted correctly. "
    )
