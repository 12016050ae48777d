"""Digests of a run's input files, because the contents of a path can change."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from models.bundle import bundle
from models.bundle.bundle import sha256
from models.bundle.sources import local
from training.config import DevTasks, RunConfig
from training.evaluation import beir
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import SICKR_DEV, STS_TASKS, STSB_DEV, data_root
from training.study.trial import StudyError

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
"""Patterns of the files of an encoder's folder that decide its vectors.

The card, evaluations and exports are left out.
"""


class Contents:
    """A cache of digests. Each corpus, encoder folder and evaluation folder is read once.

    Encoders in `to_come` do not exist yet and are identified by path.
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
        """Return digests of the run's inputs by field.

        Fields without a path are left out.

        The digest of evaluation data covers the STS tasks (unless `sts` is false), the transfer tasks (with
        `transfer`), and the collections named by `retrieval`. An encoder without a local folder is identified by its
        name.

        Raises:
            StudyError: a corpus is no file.
            SourceError: a path does not lead to an encoder's folder.
        """
        found = {}
        if config.corpus:
            found["corpus"] = self._corpus(config.corpus)
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


def corpus_digest(files: tuple[str, ...]) -> str:
    """Return the SHA-256, in hex, of the digests of the files in their order.

    Raises:
        StudyError: a path is not that of a file.
    """
    if missing := [file for file in files if not Path(file).is_file()]:
        raise StudyError(f"corpus: {missing[0]} is no file")
    return _whole(sha256(Path(file)) for file in files)


def encoder_digest(folder: Path) -> str:
    """Return a bundle's fingerprint, else the SHA-256, in hex, of the paths and digests of the encoder's files.

    Raises:
        BundleError: the folder has a manifest but does not match it.
    """
    if (folder / bundle.MANIFEST).exists():
        return bundle.load(folder).manifest.fingerprint
    return _of(folder, {file for pattern in READ for file in folder.glob(pattern) if file.is_file()})


def sts_digest(data: str, dev_tasks: DevTasks = "stsb") -> str:
    """Return the SHA-256, in hex, of the paths and digests of the STS files in `data`.

    SICK-R's dev split is included only if it chooses weights.
    """
    root, dev = data_root(Path(data)), (STSB_DEV,) if dev_tasks == "stsb" else (STSB_DEV, SICKR_DEV)
    return _of(root, {file for task in (*STS_TASKS.values(), *dev) for file in (root / task.folder).glob(task.files)})


def transfer_digest(data: str) -> str:
    """Return the SHA-256, in hex, of the paths and digests of the transfer tasks' files."""
    root = data_root(Path(data))
    files = {root / task.folder / file for task in TRANSFER_TASKS.values() for file in task.files}
    return _of(root, {file for file in files if file.is_file()})


def retrieval_digest(data: str, names: tuple[str, ...]) -> str:
    """Return the SHA-256, in hex, of the files of collections, restricted to the queried splits."""
    known = beir.collections(Path(data))
    root = next(iter(known.values()), Path(data)).parent
    files = {root / folder / file for folder, split in map(beir.part, names) for file in beir.files(split)}
    return _of(root, {file for file in files if file.is_file()})


def _of(root: Path, files: Iterable[Path]) -> str:
    return _whole(f"{file.relative_to(root)} {sha256(file)}" for file in sorted(files))


def _whole(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()
