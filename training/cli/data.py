"""`data`: fetch evaluation and training data from the Hugging Face hub, and convert documents to a corpus."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from models.errors import none_of
from models.python_docs import sections
from training.data.documents import write
from training.evaluation import beir, known_item
from training.evaluation.datasets import checksums
from training.evaluation.datasets.catalogue import CATALOGUE
from training.evaluation.datasets.fetch import default_folder, downloaded_by_hand, from_hub, provide
from training.evaluation.pairs import DataError


def get(options: argparse.Namespace) -> int:
    """Fetch the data, and print its folder. Other commands take this folder as `--data` or `--eval-data`."""
    folder = _folder(options)
    _check_names(options.names)
    for name in dict.fromkeys(options.names):
        provide(name, CATALOGUE[name], folder, sys.stderr, download=from_hub)
    print(folder)
    return 0


def show(options: argparse.Namespace) -> int:
    """List the datasets without reading their files."""
    folder = _folder(options)
    recorded = checksums.read(folder)
    for name, dataset in CATALOGUE.items():
        entry = recorded.get(name)
        whole = entry is not None and all((folder / file).is_file() for file in entry.files)
        state = f"downloaded at {entry.time}" if entry and whole else "incomplete" if entry else "not here"
        print(f"{name}: {dataset.summary} ({state})")
        for source in dataset.sources:
            print(f"  {source.megabytes:g} MB: {source.file} of {source.repo}, commit {source.commit}")
    print(f"folder: {folder}")
    return 0


def verify(options: argparse.Namespace) -> int:
    """Check the named datasets, or all datasets in the folder, and print their counts.

    Raises:
        DataError: a name is unknown, the folder has no dataset, or a dataset is incomplete or has changed. The check
            ends at the first such dataset.
    """
    folder = _folder(options)
    _check_names(options.names)
    recorded = checksums.read(folder)
    here = [
        name
        for name, each in CATALOGUE.items()
        if name in recorded or each.present(folder) or downloaded_by_hand(each, folder)
    ]
    if not (names := list(dict.fromkeys(options.names)) or here):
        raise DataError(f"{folder}: contains none of {', '.join(CATALOGUE)}")
    for name in names:
        provide(name, CATALOGUE[name], folder, sys.stdout, download=None)
    return 0


def documented(options: argparse.Namespace) -> int:
    """Write the documentation of the running Python as a retrieval collection, and replace an existing collection."""
    made = known_item.collection_of(sections())
    place = _folder(options) / beir.FOLDER / known_item.DOCUMENTATION
    beir.save(made, place)
    print(f"{place}: {len(made.documents)} documents, {len(made.queries)} queries")
    return 0


def sentences(options: argparse.Namespace) -> int:
    """Convert documents to a corpus, and print the numbers of sentences and texts."""
    found = write(options.files, options.out)
    print(f"{options.out}: {found.sentences} sentences of {found.texts} texts")
    return 0


def _check_names(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in CATALOGUE]:
        raise DataError(f"dataset {none_of(unknown[0], CATALOGUE)}")


def _folder(options: argparse.Namespace) -> Path:
    return options.to if options.to is not None else default_folder()
