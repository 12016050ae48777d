"""Embedding of the texts in files to a folder of Parquet files, on a Ray cluster.

As on one machine, a first pass checks and counts all rows, and a second pass embeds them in parts of 4,096 rows.
All nodes of the cluster take part in both passes. The input files are divided into shards. One task reads each shard
and sends its parts to actors, which embed them. Each part becomes a file, which is written atomically. If the command
is repeated, only missing parts are computed. If a node is lost, Ray computes its unfinished parts again.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from isosphere.embed.embedding import Done, Model, Options, difference, locked, parsed, progress
from isosphere.embed.on_ray.places import Folder, Url, is_url, list_files, state
from isosphere.embed.on_ray.pool import READ_CPUS, Pool, derive
from isosphere.embed.on_ray.tasks import Description, Writer, check_files, describe, digest, read
from isosphere.embed.outputs import Parquet
from models.bundle.sources import MINILM, shipped
from models.cluster import alive_nodes, connected, free_resources, own_errors
from models.errors import Failed, Refused

MANIFEST = "_manifest.json"
"""Name of the manifest. Readers of Parquet folders ignore files whose names begin with `_`."""
SHARD_BYTES = 64_000_000
"""Maximum bytes of a shard, which is a group of consecutive files that one task reads.

A larger file is a shard of its own.
"""


class Shard(NamedTuple):
    """Consecutive input files, and the results of the first pass for them."""

    files: list[Path | Url]
    done: Done
    parts: dict[str, int]
    """Number of rows of each part, by the part's name."""


class Made(NamedTuple):
    """Row counts of a complete output folder, and facts about its encoder."""

    done: Done
    encoder: str
    max_length: int
    truncated: int


def embed(
    model: Model, places: Sequence[str], out: str, options: Options, *, address: str | None, force: bool, stream: TextIO
) -> Made:
    """Embed the texts at `places` and write the vectors to the folder `out`. Places and `out` are paths or URLs.

    Args:
        address: address of a Ray cluster. None means the address in `RAY_ADDRESS`. If this variable is not set, Ray
            is started on this machine.
        force: replace `out` if it is complete, or if a command with other options or inputs wrote it. Without `force`,
            the complete output of the same command is kept, and only missing parts are written. Parts of an unfinished
            run of the same command are always kept.
        stream: receives the progress.

    Raises:
        Refused: an input, an option or the cluster can't be used; an input changed during the run; another process is
            writing `out`, or wrote it while the inputs were checked; `out` contains files that this command does not
            write; or a command with other options or inputs wrote `out`, and `force` is false.
        Failed: a URL does not answer, Ray failed, or parts were not written.
        OSError: a file can't be read or written.
    """
    folder = Folder(out if is_url(out) else str(Path(out).absolute()))
    files = [
        file for file in list_files([_absolute(place) for place in places]) if not str(file).startswith(f"{folder}/")
    ]
    if not files:
        raise Refused(f"{folder}: contains all inputs: name another folder with --out")
    known = _manifest(folder)
    with connected(address), own_errors():
        import ray

        pool = derive(alive_nodes(), free_resources(), threads=model.threads, device=model.device)
        model = replace(model, name=_model_name(model.name), threads=pool.threads)
        remote = ray.remote(num_cpus=pool.cpus, num_gpus=pool.gpus)(describe)
        description: Description = ray.get(remote.remote(model, options))
        states = [state(file) for file in files]
        wanted = _wanted(description, options, states)
        same = known.items() >= wanted.items()
        there = folder.names()
        complete = same and "done" in known
        if complete and known["parts"].keys() <= there and not force:
            return Made(Done(**known["done"]), description.metadata["encoder"], description.max_length, 0)
        if foreign := sorted(name for name in there if name != MANIFEST and not name.startswith("part-")):
            raise Refused(f"{folder}: contains other files, such as {foreign[0]}: name a new folder with --out")
        if there and not same and not force:
            what = difference(known, wanted)
            raise Refused(f"{folder} {what}. --force replaces the folder, another --out keeps it")
        output = Parquet(description.empty, options.columns, description.metadata)
        shards = _check(files, [each[1] for each in states], options, output, stream)
        with locked(folder.path, folder) if folder.path else nullcontext():
            if _manifest(folder) != known:
                raise Refused(f"{folder}: another command has written it meanwhile; repeat this command")
            if not same or (complete and force):
                for name in there:
                    folder.remove(name)
                there = set()
                folder.write(MANIFEST, json.dumps(wanted, indent=2).encode())
            writing = (description, options, output, folder)
            digests, truncated = _fill(shards, there, writing, pool, stream)
            if _wanted(description, options, [state(file) for file in files]) != wanted:
                raise Refused(f"{folder}: an input changed while it was read; repeat the command with --force")
            first = next((shard.done.first_skipped for shard in shards if shard.done.skipped), "")
            done = Done(sum(shard.done.rows for shard in shards), sum(shard.done.skipped for shard in shards), first)
            facts = {"done": done._asdict(), "parts": digests}
            folder.write(MANIFEST, json.dumps({**wanted, **facts}, indent=2).encode())
    return Made(done, description.metadata["encoder"], description.max_length, truncated)


def _model_name(name: str) -> str:
    """Return the name or path by which the cluster's processes load the encoder `name`.

    The name of a shipped adapter, such as `default`, is returned unchanged, even if a folder has the same name. Any
    other existing path becomes absolute.
    """
    return name if f"{MINILM}+{name}" in shipped() else _absolute(name)


def _absolute(place: str) -> str:
    """Return a path as an absolute path, because the cluster's processes have other working directories.

    A URL is returned unchanged. A path that does not exist is also returned unchanged.
    """
    return str(Path(place).absolute()) if not is_url(place) and Path(place).exists() else place


def _manifest(folder: Folder) -> dict[str, Any]:
    return parsed(folder.read(MANIFEST)) if MANIFEST in folder.names() else {}


def _wanted(description: Description, options: Options, states: list[list[Any]]) -> dict[str, Any]:
    """Return everything that determines the output: the encoder, the options, and the states of the input files.

    `states` has a list for each input file: the file's name, its size, and a value that changes with its content.
    """
    return {**description.metadata, **asdict(options), "inputs": states}


def _check(files: list[Path | Url], sizes: list[int], options: Options, output: Parquet, stream: TextIO) -> list[Shard]:
    """Check all rows of the files, and divide the files into shards.

    Each returned shard has the names and row counts of its parts, which are the output files to write for it. Every
    input file is read once. The nodes of the cluster share this work.

    Raises:
        CorpusError: a row is bad and `options.on_error` is "fail", or a file can't be read.
        Refused: the output can't contain the values of a column.
    """
    import ray

    groups = list(_shards(files, sizes))
    check = ray.remote(num_cpus=READ_CPUS)(check_files)
    waiting = [check.remote(group, options, output) for group in groups]
    shards: list[Shard] = []
    first = 0
    with progress(len(waiting), 0, stream, "file") as advance:
        for group, found in zip(groups, waiting, strict=True):
            done, learned = ray.get(found)
            output.merge(learned, str(group[0]), str(group[-1]))
            left = range(done.rows, 0, -options.rows_of_a_part)
            # The order of sorted file names is the order of the input.
            parts = {f"part-{first + i:08}.parquet": min(rows, options.rows_of_a_part) for i, rows in enumerate(left)}
            shards.append(Shard(group, done, parts))
            first += len(parts)
            advance(1)
    output.check_types()
    return shards


def _shards(files: list[Path | Url], sizes: list[int]) -> Iterator[list[Path | Url]]:
    shard: list[Path | Url] = []
    total = 0
    for file, size in zip(files, sizes, strict=True):
        if shard and total + size > SHARD_BYTES:
            yield shard
            shard, total = [], 0
        shard.append(file)
        total += size
    yield shard


def _fill(
    shards: list[Shard],
    there: set[str],
    writing: tuple[Description, Options, Parquet, Folder],
    pool: Pool,
    stream: TextIO,
) -> tuple[dict[str, str], int]:
    """Embed and write each part (an output file) that is missing in the output folder.

    `there` has the names of the parts that exist. Return a dictionary from the names of all parts to their digests, and
    the number of texts that were truncated in the newly embedded parts.

    Raises:
        Failed: a part was not written.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    _, options, _, folder = writing
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # Each block has one part, so that Ray distributes parts evenly.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = {name: count for shard in shards for name, count in shard.parts.items()}
    missing = [shard for shard in shards if shard.parts.keys() - there]
    digest_of = ray.remote(num_cpus=READ_CPUS)(digest)
    waiting = {name: digest_of.remote(folder, name) for name in sorted(there & rows.keys())}
    digests: dict[str, str] = {}
    truncated = 0
    with progress(sum(rows.values()), sum(rows[name] for name in waiting), stream) as advance:
        if missing:
            shards_of = ray.data.from_items(
                [{"parts": [*shard.parts], "files": pickle.dumps(shard.files)} for shard in missing],
                override_num_blocks=len(missing),
            )
            parts = shards_of.map_batches(
                read,  # type: ignore[arg-type] # Ray's type of a generator leaves out lists
                fn_kwargs={"options": options, "there": there},
                batch_size=1,
                num_cpus=READ_CPUS,
            )
            made = parts.map_batches(
                Writer,
                fn_constructor_args=writing,
                batch_size=1,
                compute=ActorPoolStrategy(
                    min_size=1,
                    max_size=pool.actors,
                    initial_size=pool.actors,
                    # With two concurrent calls, a part is read and written while another part is embedded.
                    max_concurrent_calls_per_actor=2,
                    enable_true_multi_threading=True,
                ),
                num_cpus=pool.cpus,
                num_gpus=pool.gpus,
            )
            for row in made.iter_rows():
                digests[row["part"]] = row["sha256"]
                truncated += row["truncated"]
                advance(row["rows"])
        digests |= {name: ray.get(found) for name, found in waiting.items()}
    if lost := rows.keys() - digests.keys():
        raise Failed(
            f"{folder}: {len(lost)} parts were not written, such as {min(lost)}; repeat the command to write them"
        )
    return {name: digests[name] for name in sorted(digests)}, truncated
