"""A single run of a study: its configuration and its labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

from models.bundle import bundle
from models.bundle.bundle import sha256
from models.bundle.sources import local
from training.config import ConfigError, DevTasks, RunConfig
from training.evaluation import beir
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import SICKR_DEV, STS_TASKS, STSB_DEV, data_root

SEED = "seed"


class StudyError(ConfigError):
    """A study can't be run or reported. The message is one line and names the file and the key."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run of a study, without folders: `config.out` and `config.run` are empty."""

    arm: str
    """Name of the study's arm, which may be empty."""
    axes: Mapping[str, Any]
    """Values of the axes in this run."""
    config: RunConfig
    fraction: float = 1.0
    """Share of the corpus that is used in training."""
    untrained: bool = False
    """True if the backbone is evaluated without training."""
    sts: bool = True
    """True to evaluate on the STS tasks.

    If `config` has no `dev_data`, this field also chooses how weights are selected: by dev sets of STS if True, and by
    a score without labels if False.
    """
    transfer: bool = False
    """True to evaluate on the transfer tasks."""
    retrieval: tuple[str, ...] = ()
    """Names of the collections for evaluation, as in `training.evaluation.beir.part`."""
    neighbours: int = 0
    """Number of corpus sentences whose nearest neighbours in a batch are measured."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digests that replace the paths of `config` in the id, by field (see `InputDigests`)."""

    @cached_property
    def id(self) -> str:
        """Hash of everything that affects the run's result. The arm, the preset's name and paths are not included."""
        return self._digest(self.config, self.inputs)

    @cached_property
    def settings(self) -> str:
        """Hash of everything that `id` covers, except the corpus and the evaluation data.

        The recorded result of a run can be found by this hash, even if `config` does not name these data.
        """
        config = replace(self.config, corpus=(), text_column=None, eval_data=None, dev_data=None)
        return self._digest(config, {name: digest for name, digest in self.inputs.items() if name in ENCODERS})

    def _digest(self, config: RunConfig, inputs: Mapping[str, str]) -> str:
        described = json.loads(replace(config, preset="").to_json()) | dict(inputs)
        content = f"{json.dumps(described, indent=2)}\n{self.fraction}{self.untrained}"
        # Values that equal the defaults of earlier versions are not hashed, so that existing ids stay valid.
        content += "transfer" if self.transfer else ""
        content += "".join(f"retrieval {name}" for name in self.retrieval) + ("" if self.sts else "no sts")
        content += f"neighbours {self.neighbours}" if self.neighbours else ""
        return hashlib.blake2b(content.encode("utf-8"), digest_size=6).hexdigest()

    @property
    def label(self) -> str:
        """Text with the arm and the values of its axes, without the seed.

        The scores of runs with the same label are averaged.
        """
        return label_of(self.arm, self.axes)

    @property
    def title(self) -> str:
        """Return the label and, for a trained run, the seed."""
        return self.label if self.untrained else f"{self.label}, seed {self.config.seed}"

    def to_json(self) -> str:
        """Return the JSON text that `from_json` reads."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "config"}
        values["config"] = json.loads(self.config.to_json())
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text that `to_json` wrote.

        Raises:
            StudyError: the text is not a run of a study.
        """
        try:
            values = json.loads(text)
            config = RunConfig.from_json(json.dumps(values["config"]))
            return cls(**{**values, "retrieval": tuple(values["retrieval"]), "config": config})
        except (ValueError, TypeError, KeyError) as error:
            raise StudyError(f"not a run of a study: {error}") from error


def label_of(arm: str, axes: Mapping[str, Any]) -> str:
    """Return the label of a run: its arm, followed by the values of its axes except the seed.

    A value that is a text stands alone. Any other value is preceded by the name of its axis.
    """
    parts = [arm] if arm else []
    parts += [
        value if isinstance(value, str) else f"{name} {_plain(value)}" for name, value in axes.items() if name != SEED
    ]
    return ", ".join(parts) or "all"


def _plain(value: Any) -> str:
    # Numbers are not rounded, so that runs with different values have different labels.
    return repr(value) if isinstance(value, float) else json.dumps(value)


# Digests of a run's input files. They replace paths, because the content of a path can change.

ENCODERS = ("backbone", "teacher")
READ = (
    "*config*.json",
    "*.safetensors",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "modules.json",
    "pytorch_model*.bin",
    "[0-9]*_*/*",
)
"""Patterns of the files in an encoder's folder that determine its vectors.

The model card, evaluations and exported graphs are left out.
"""


class InputDigests:
    """Cache of the digests of runs' input files. Each corpus, encoder folder and evaluation folder is read once.

    `to_come` are folders of encoders that do not exist yet. These encoders are identified by path.
    """

    def __init__(self, to_come: Collection[Path] = ()) -> None:
        self._to_come = {folder.resolve() for folder in to_come}
        self._corpus = cache(corpus_digest)
        self._encoder = cache(encoder_digest)
        self._sts = cache(sts_digest)
        self._transfer = cache(transfer_digest)
        self._retrieval = cache(retrieval_digest)

    def of(
        self, config: RunConfig, *, sts: bool = True, transfer: bool = False, retrieval: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """Return the digest of each input of a run, by field of the configuration.

        Fields that contain no path are left out. `eval_data` has the digest of the STS tasks, or an empty digest if
        `sts` is false. The transfer tasks and the collections in `retrieval` have digests of their own, under the keys
        `transfer` and `retrieval`. An encoder without a local folder has no digest, because its name identifies it.

        Raises:
            StudyError: a path in `corpus` or `dev_data` is not a file.
            SourceError: a path does not lead to an encoder's folder.
            BundleError: the folder of an encoder has a manifest but does not match it.
        """
        found = {}
        if config.corpus:
            found["corpus"] = self._corpus(config.corpus)
        if config.dev_data is not None:
            found["dev_data"] = self._corpus((config.dev_data,), "dev_data")
        if config.eval_data is not None:
            found["eval_data"] = self._sts(config.eval_data, config.dev_tasks) if sts else ""
            if transfer:
                found["transfer"] = self._transfer(config.eval_data)
            if retrieval:
                found["retrieval"] = self._retrieval(config.eval_data, retrieval)
        for name in ENCODERS:
            place = getattr(config, name)
            if place is None or Path(place).resolve() in self._to_come:
                continue
            if folder := local(place):
                found[name] = self._encoder(folder.resolve())
        return found


def corpus_digest(files: tuple[str, ...], name: str = "corpus") -> str:
    """Return the SHA-256, in hex, of the digests of the files in their order.

    Args:
        name: field of the configuration that lists `files`. The message of the error begins with this name.

    Raises:
        StudyError: a path is not a file.
    """
    if missing := [file for file in files if not Path(file).is_file()]:
        raise StudyError(f"{name}: {missing[0]} is not a file")
    return _digest_lines(sha256(Path(file)) for file in files)


def encoder_digest(folder: Path) -> str:
    """Return the fingerprint of a bundle, or a digest of an encoder that is not a bundle.

    The digest is the SHA-256, in hex, of the paths and digests of the files that match `READ`.

    Raises:
        BundleError: the folder has a manifest but does not match it.
    """
    if (folder / bundle.MANIFEST).exists():
        return bundle.load(folder).manifest.fingerprint
    return _digest_files(folder, {file for pattern in READ for file in folder.glob(pattern)})


def sts_digest(data: str, dev_tasks: DevTasks = "stsb") -> str:
    """Return the SHA-256, in hex, of the paths and digests of the STS files in `data`.

    SICK-R's dev split is included only if `dev_tasks` uses this split to select weights.
    """
    root, dev = data_root(Path(data)), (STSB_DEV,) if dev_tasks == "stsb" else (STSB_DEV, SICKR_DEV)
    return _digest_files(
        root, {file for task in (*STS_TASKS.values(), *dev) for file in (root / task.folder).glob(task.files)}
    )


def transfer_digest(data: str) -> str:
    """Return the SHA-256, in hex, of the paths and digests of the transfer tasks' files."""
    root = data_root(Path(data))
    files = {root / task.folder / file for task in TRANSFER_TASKS.values() for file in task.files}
    return _digest_files(root, files)


def retrieval_digest(data: str, names: tuple[str, ...]) -> str:
    """Return the SHA-256, in hex, of the paths and digests of the files of collections.

    `names` are collections, each optionally with a split (see `beir.part`). Files of other splits are left out.
    """
    known = beir.collections(Path(data))
    root = next(iter(known.values()), Path(data)).parent
    files = {root / folder / file for folder, split in map(beir.part, names) for file in beir.files(split)}
    return _digest_files(root, files)


def _digest_files(root: Path, files: Iterable[Path]) -> str:
    return _digest_lines(f"{file.relative_to(root)} {sha256(file)}" for file in sorted(files) if file.is_file())


def _digest_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()
