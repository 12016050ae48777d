"""Data sets on the Hugging Face hub, addressed as in its file system."""

from __future__ import annotations

import re
from collections.abc import Collection
from glob import escape, has_magic
from pathlib import Path

from models.errors import Refused
from models.remotes.base import told

SCHEME = "hf://"
DATASET = re.compile(
    r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?"
)
ALIASES = {"~parquet": "refs/convert/parquet"}
"""Short names of revisions.

`~parquet` is the branch in which the hub stores a data set as Parquet by configuration and split.
"""


def fetched(url: str, endings: Collection[str]) -> str:
    """Download data to the hub's cache, and return its path there: a file, a folder or a glob pattern.

    The URL is `hf://datasets/OWNER/NAME[@REVISION][/PATH]`, and PATH may be a pattern. From a folder only files with
    these `endings` are downloaded. Cached files need no network.

    Raises:
        Refused: the URL names no data set, or the data set has no such file.
        RemoteError: the hub can't be reached or refuses, or a part is missing from the cache.
    """
    from huggingface_hub import snapshot_download

    if not (named := DATASET.fullmatch(url)):
        raise Refused(f"{url}: expected hf://datasets/OWNER/NAME[@REVISION][/PATH]")
    path = (named["path"] or "").rstrip("/")
    pattern = has_magic(path)
    wanted = [path.replace("**/", "*")] if pattern else [path, *(f"{path}/*{ending}".lstrip("/") for ending in endings)]
    with told(url, fetching=True):
        folder = snapshot_download(
            named["name"],
            repo_type="dataset",
            revision=ALIASES.get(named["revision"], named["revision"]),
            allow_patterns=wanted,
        )
    if not pattern and not Path(folder, path).exists():
        raise Refused(f"{url}: no such file, and no folder with files of {', '.join(endings)}")
    return f"{escape(folder) if pattern else folder}/{path}"
