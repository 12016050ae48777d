"""Embedding of the texts in files to one output file. The work is divided into parts, which survive a kill.

A run reads its input twice. The first pass counts the rows and finds bad rows, so that a bad row does not stop a run
after hours of work. The second pass embeds `ROWS` rows at a time and writes each batch atomically as a part. At the
end, the parts are joined to the output file. A manifest beside the output file records the options and the inputs. If
the same command is repeated, it computes only the missing parts.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tqdm import tqdm

from isosphere.embed.outputs import Npy, Parquet, Vectors
from isosphere.embed.rows import Row, rows
from isosphere.encoder import Encoder, load
from models.bundle import quantization
from models.bundle.disk import locked_exclusively, make_folder, replacing, write_whole
from models.bundle.tokenizer import TokenizerFailure
from models.errors import Refused
from models.names import Device
from models.runtimes.base import RuntimeUnavailable
from training.data.files import CorpusError, File, OnBadRow, resolve_files

ROWS = 4096
"""Default number of rows of a part.

The rows of a part are sorted by length and embedded together. A kill loses only the part that is being embedded.
"""
LINE_EVERY = 30.0
"""Seconds between two lines of progress if the output is not a terminal."""
BITS = {"binary": quantization.binary, "ubinary": quantization.ubinary}
BYTES = {"int8": quantization.int8, "uint8": quantization.uint8}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command, by their names on the command line.

    `rows_of_a_part`, the number of rows that are embedded and written together, is not on the command line.
    """

    text_column: str | None = None
    id_column: str | None = None
    columns: list[str] = field(default_factory=list)
    on_error: str = "fail"
    prompt_name: str | None = None
    dimensions: int | None = None
    encoding: str = "float"
    rows_of_a_part: int = field(default_factory=lambda: ROWS)


@dataclass(frozen=True)
class Model:
    """The name of an encoder, and the options for loading it."""

    name: str
    engine: str | None
    precision: str | None
    device: Device
    threads: int | None

    def load(self) -> Encoder:
        """Load the encoder in this process.

        Raises:
            Refused: the engine can't run on this machine or in this precision, or no engine is accurate enough.
        """
        options = asdict(self)
        try:
            return load(options.pop("name"), **options)
        except RuntimeUnavailable as error:
            raise Refused(str(error)) from error


class Done(NamedTuple):
    """Row counts of a complete output file."""

    rows: int
    skipped: int
    first_skipped: str
    """Error message of the first bad row."""


def embed(encoder: Encoder, files: Sequence[str], out: Path, options: Options, *, force: bool, stream: TextIO) -> Done:
    """Embed the texts in `files` and write the vectors to `out` (.parquet or .npy), in the order of the input.

    Args:
        force: replace `out`, or the parts of an unfinished `out`, even if a command with other options or inputs wrote
            them.
        stream: receives the progress.

    Raises:
        Refused: an input or an option can't be used; an input changed during the run; another process is writing
            `out`, or wrote it while the inputs were checked; or `force` is false, and `out` or such parts exist, but
            were not written by the same command with the same inputs.
        OSError: a file can't be read or written.
    """
    if out.is_dir():
        raise Refused(f"--out: {out} is a folder: name a file")
    parts, manifest = out.with_name(f".{out.name}.parts"), out.with_name(f"{out.name}.json")
    job = Job(encoder, _inputs(files, out, parts), options)
    output = job.output(out)
    wanted = job.wanted()
    known = _read(manifest)
    same = known.items() >= wanted.items()
    if same and "done" in known and out.exists() and not force:
        if parts.exists():  # A killed process has left them, or a process with --force is writing them.
            with suppress(Refused), locked(parts, out):
                shutil.rmtree(parts)
        return Done(**known["done"])
    if not same and not force and (out.exists() or any(parts.glob("*"))):
        raise Refused(f"{out} {difference(known, wanted)}. --force replaces the file, another --out keeps it")
    done = job.check(output, stream)
    with locked(parts, out):
        if _read(manifest) != known:
            raise Refused(f"{out}: another command has written it meanwhile; repeat this command")
        if not same:
            for part in parts.iterdir():
                part.unlink()
            write_whole(manifest, json.dumps(wanted, indent=2))
        made = job.fill(parts, output, done.rows, stream)
        if job.wanted() != wanted:
            raise Refused(f"{out}: an input changed while it was read; repeat the command with --force")
        with replacing(out) as beside:
            output.join(made, beside)
        write_whole(manifest, json.dumps({**wanted, "done": done._asdict()}, indent=2))
        shutil.rmtree(parts)
    return done


@dataclass(frozen=True)
class Job:
    """An encoder, the input files, and the options of the command."""

    encoder: Encoder
    paths: Sequence[Path]
    options: Options

    def wanted(self) -> dict[str, Any]:
        """Return everything that determines the output: encoder, options, and each input's path, size and mtime."""
        inputs = [[str(path), (stat := path.stat()).st_size, stat.st_mtime_ns] for path in self.paths]
        return {**made_by(self.encoder), **asdict(self.options), "inputs": inputs}

    def output(self, out: Path) -> Npy | Parquet:
        """Return the output format, chosen by the suffix of `out`.

        Raises:
            Refused: the format can't store the columns that the options name, or pyarrow is not installed.
        """
        empty, metadata = no_vectors(self.encoder, self.options)
        if out.suffix == ".parquet":
            return Parquet(empty, self.options.columns, metadata)
        if self.options.id_column or self.options.columns:
            raise Refused(f"{out}: .npy has no columns, so leave out --id-column and --columns, or write .parquet")
        return Npy(empty)

    def check(self, output: Npy | Parquet, stream: TextIO) -> Done:
        """Read all rows once to count and check them, and let `output` learn the types of its columns."""
        with tqdm(desc="checking", unit="row", file=stream, disable=not stream.isatty(), leave=False) as bar:

            def learn(batch: Sequence[Row]) -> None:
                output.learn(batch)
                bar.update(len(batch))

            done = check(self.paths, self.options, learn)
        output.check_types()
        return done

    def fill(self, parts: Path, output: Npy | Parquet, total: int, stream: TextIO) -> list[Path]:
        """Embed the rows of each part that the folder `parts` lacks, and return the paths of all parts in order.

        `total` is the number of rows of the input.

        Raises:
            Refused: the tokenizer failed on a row.
        """
        made = []
        there = min(total, self.options.rows_of_a_part * len(list(parts.glob("[!.]*"))))
        with progress(total, there, stream) as advance:
            for number, batch in enumerate(batches(self.paths, self.options, lambda _: None)):
                made.append(part := parts / f"{number:08}")
                if not part.exists():
                    try:
                        vectors = vectors_of(self.encoder, [row.text for row in batch], self.options)
                    except TokenizerFailure as error:
                        raise Refused(f"a row between {batch[0].place} and {batch[-1].place}: {error}") from error
                    with replacing(part) as beside:
                        output.write(batch, vectors, beside)
                    advance(len(batch))
        return made


def made_by(encoder: Encoder) -> dict[str, str]:
    """Return the name, fingerprint and engine of the encoder, for manifests and for the metadata of Parquet files."""
    return {"encoder": encoder.name, "fingerprint": encoder.fingerprint, "engine": encoder.engine}


def batches(paths: Iterable[File], options: Options, bad: OnBadRow) -> Iterator[list[Row]]:
    """Yield the rows of all files in lists of `options.rows_of_a_part` rows. The last list may be shorter.

    Bad rows are left out. `bad` receives the error of each bad row.
    """
    found = rows(paths, options.text_column, options.id_column, options.columns, bad)
    while batch := list(islice(found, options.rows_of_a_part)):
        yield batch


def check(paths: Iterable[File], options: Options, learn: Callable[[Sequence[Row]], None]) -> Done:
    """Read all rows once: count them, and refuse or skip bad rows. `learn` receives each batch of rows.

    Raises:
        CorpusError: a row is bad and `options.on_error` is "fail", or a file can't be read.
    """
    total, skipped, first = 0, 0, ""

    def bad(error: CorpusError) -> None:
        nonlocal skipped, first
        if options.on_error == "fail":
            raise error
        skipped += 1
        first = first or str(error)

    for batch in batches(paths, options, bad):
        learn(batch)
        total += len(batch)
    return Done(total, skipped, first)


def vectors_of(encoder: Encoder, texts: Sequence[str], options: Options) -> Vectors:
    """Return the vectors (N, D) of N texts, quantised if the options say so. The server returns the same values.

    Raises:
        Refused: the encoder has no calibrated range for the quantisation.
    """
    encode = partial(encoder.encode, texts, prompt_name=options.prompt_name, progress=False)
    encoding, dimensions = options.encoding, options.dimensions
    if encoding == "float":
        return encode(dimensions=dimensions)
    unit = encode()[:, :dimensions]  # Truncated vectors are quantised without a second normalisation, as in the server.
    if code := BITS.get(encoding):
        return code(unit)
    if encoder.int8_limit is None:
        raise Refused(f"--encoding: {encoder.name} has no calibrated range for {encoding}: export the encoder again")
    return BYTES[encoding](unit, encoder.int8_limit)


def no_vectors(encoder: Encoder, options: Options) -> tuple[Vectors, dict[str, str]]:
    """Return an empty array (0, D) of the output's type, and the metadata of the output's table."""
    whole = encoder.encode([], prompt_name=options.prompt_name, dimensions=options.dimensions)
    shape = {"dim": str(whole.shape[1]), "encoding": options.encoding}
    return vectors_of(encoder, [], options), {**made_by(encoder), **shape}


def _inputs(files: Sequence[str], out: Path, parts: Path) -> list[Path]:
    """Return the input files, without `out` and the files in the folder `parts`, because this command writes them.

    Raises:
        Refused: no other file is left.
    """
    paths = [
        path
        for path in dict.fromkeys(resolve_files(files))
        if path.resolve() != out.resolve() and parts.resolve() not in path.resolve().parents
    ]
    if not paths:
        raise Refused(f"{out}: is the only input: name another file with --out")
    return paths


def _read(manifest: Path) -> dict[str, Any]:
    return parsed(manifest.read_bytes()) if manifest.exists() else {}


def parsed(manifest: bytes) -> dict[str, Any]:
    """Parse a manifest. Return an empty dictionary if it is not a JSON object."""
    try:
        known = json.loads(manifest)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def difference(known: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return a message that says how an existing output differs from the output that this command would write."""
    if not known.keys() >= wanted.keys():
        return "already exists, and was not written by this command"
    differ = [
        f"{name} was {known[name]!r} and is {value!r}"
        for name, value in wanted.items()
        if name != "inputs" and known[name] != value
    ]
    before, now = ({path: facts for path, *facts in inputs} for inputs in (known["inputs"], wanted["inputs"]))
    differ += [
        f"{path} {'is new' if path not in before else 'has changed' if path in now else 'is missing'}"
        for path in before | now
        if before.get(path) != now.get(path)
    ]
    return f"was written by another command: {'; '.join(differ) or 'the inputs had another order'}"


@contextmanager
def locked(parts: Path, out: object) -> Iterator[None]:
    """Create and lock the folder `parts` for the `with` block, or raise `Refused` if another process has locked it."""
    make_folder(parts)
    try:
        with locked_exclusively(parts):
            yield
    except BlockingIOError as error:
        raise Refused(f"{out}: another process is writing it") from error


@contextmanager
def progress(total: int, there: int, stream: TextIO, unit: str = "row") -> Iterator[Callable[[int], None]]:
    """Show how many of `total` units, such as rows, are finished, with the speed and the remaining time.

    Yield a function that takes the number of units that were just finished. `there` units were finished before. A
    terminal shows a progress bar, and any other stream shows a line from time to time.
    """
    began = said = time.monotonic()
    done = 0

    def advance(rows: int) -> None:
        nonlocal done, said
        done += rows
        bar.update(rows)
        now = time.monotonic()
        if bar.disable and now - said >= LINE_EVERY:
            said = now
            speed = done / (now - began)
            left = timedelta(seconds=round((total - there - done) / speed))
            print(f"{there + done} of {total} {unit}s, {speed:.0f} {unit}s/s, {left} left", file=stream, flush=True)

    with tqdm(total=total, initial=there, unit=unit, file=stream, disable=not stream.isatty()) as bar:
        yield advance
