"""Choice of the fastest runtime and precision for a bundle on this machine, by measurements that are cached.

If several pairs of runtime and precision are possible, a pair is chosen only if it reproduces the vectors of the
float32 reference and the bundle does not exclude it. If only one pair is possible, it is chosen without these checks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from models.bundle.bundle import ENGINES, Bundle, BundleError
from models.bundle.disk import write_whole
from models.runtimes import REFERENCE, RUNTIMES, Pair, available
from models.runtimes.base import Options, Runtime, RuntimeUnavailable, cache_folder
from models.runtimes.measurement import Measured, error_line, measure
from models.runtimes.onnxruntime import gpu

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A chosen pair of runtime and precision, and the measurements of all pairs."""

    pair: Pair
    measured: Sequence[Measured] = ()
    """Measurements of all pairs of this machine. Empty if there was only one candidate."""

    def next_best(self, bundle: Bundle, error: Exception, *, among: Sequence[Pair]) -> Choice | None:
        """Return a new choice after the chosen pair failed with `error`: the fastest of the other pairs in `among`.

        In the new choice, the measurement of the failed pair is replaced by the error. Return None if no other pair in
        `among` may serve the bundle.
        """
        broken = Measured(*self.pair, error=error_line(error, bundle))
        measured = [broken if row.pair == self.pair else row for row in self.measured]
        left = [row.pair for row in measured if row.faithful and row.pair in among]
        return Choice(fastest(measured, among=left), measured) if left else None

    def table(self) -> list[dict[str, Any]]:
        """Return a JSON row for each measured pair.

        A row has the pair's measurements and two more fields, `chosen` and `why_not`. For the chosen pair, `why_not` is
        None. For any other pair, `why_not` is the reason why the pair was not chosen.
        """
        return [asdict(row) | {"chosen": row.pair == self.pair, "why_not": self._why_not(row)} for row in self.measured]

    def __str__(self) -> str:
        if self.pair == REFERENCE or not (found := self._chosen):
            return str(self.pair)
        return (
            f"{self.pair} ({found.times_reference:.1f} times as fast as {REFERENCE}, "
            f"minimum cosine to it {found.least_cosine:.5f})"
        )

    @property
    def _chosen(self) -> Measured | None:
        return next((row for row in self.measured if row.pair == self.pair), None)

    def _why_not(self, row: Measured) -> str | None:
        if row.pair == self.pair:
            return None
        if row.shortcoming:
            return row.shortcoming
        quicker = self._chosen and (row.times_reference or 0) > (self._chosen.times_reference or 0)
        return "not asked for" if quicker else "slower"


def choose(bundle: Bundle, options: Options, *, runtime: str | None = None, precision: str | None = None) -> Choice:
    """Choose the fastest pair of runtime and precision that may serve the bundle.

    A pair may serve the bundle if it reproduces the vectors of the float32 reference and the bundle does not exclude
    it. If `runtime` or `precision` is given, only pairs with this runtime or precision are candidates.

    All pairs are measured once for each bundle and host, and the measurements are cached. If a pair fails, nothing is
    cached, because the failure may be temporary. A single candidate is chosen without measurement.

    Raises:
        RuntimeUnavailable: no pair with this runtime and precision runs here, or no pair may serve the bundle.
        BundleError: the bundle's engines.json is invalid.
    """
    pairs = candidates(bundle, options, runtime=runtime, precision=precision)
    if len(pairs) == 1:
        return Choice(pairs[0])
    measured: Sequence[Measured] = recall(bundle, options)
    if not measured:
        log.info(
            "measuring the engines of %s on this machine; this is done only once",
            ", ".join(map(str, available(bundle, options))),
        )
        measured = measure(bundle, options)
        remember(bundle, options, measured)
    reasons = barred(bundle)
    measured = [replace(row, barred=reasons.get(row.pair)) for row in measured]
    return Choice(fastest(measured, among=pairs), measured)


def open_fastest(
    bundle: Bundle, options: Options, *, runtime: str | None = None, precision: str | None = None
) -> tuple[Choice, Runtime]:
    """Load the bundle with the fastest pair of runtime and precision that works on this machine.

    If `runtime` or `precision` is given, only its pairs are considered. If a pair does not load, the next fastest pair
    is tried, because cached measurements may be out of date.

    Raises:
        RuntimeUnavailable, BundleError: see `choose`.
        Exception: no pair loads. The error of the last pair is raised.
    """
    choice = choose(bundle, options, runtime=runtime, precision=precision)
    while True:
        try:
            return choice, RUNTIMES[choice.pair.runtime](bundle, choice.pair.precision, options)
        except Exception as error:  # Errors of runtimes have no common base class.
            among = candidates(bundle, options, runtime=runtime, precision=precision)
            if not (following := choice.next_best(bundle, error, among=among)):
                raise
            log.warning("%s does not load, so %s is used: %s", choice.pair, following.pair, error)
            forget(bundle, options)
            choice = following


def candidates(bundle: Bundle, options: Options, *, runtime: str | None, precision: str | None) -> Sequence[Pair]:
    """Return the pairs of runtime and precision that can run `bundle` on this machine.

    If `runtime` or `precision` is given, only its pairs are returned.

    Raises:
        RuntimeUnavailable: no such pair runs here.
    """
    wanted = {runtime: RUNTIMES[runtime]} if runtime else RUNTIMES
    pairs = available(bundle, options, runtimes=wanted)
    narrowed = [pair for pair in pairs if precision in (None, pair.precision)]
    if not narrowed:
        raise RuntimeUnavailable(
            f"no runtime of this machine supports {precision}; available: {', '.join(map(str, pairs))}"
        )
    return narrowed


def fastest(measured: Sequence[Measured], *, among: Sequence[Pair]) -> Pair:
    """Return the measured pair of runtime and precision that is fastest among the pairs in `among`.

    Pairs that may not serve the measured bundle are left out (see `Measured.faithful`).

    Raises:
        RuntimeUnavailable: no pair in `among` may serve the measured bundle.
    """
    faithful = [row for row in measured if row.faithful and row.pair in among]
    if not faithful:
        raise RuntimeUnavailable(
            f"none of {', '.join(map(str, among))} reproduces the vectors of {REFERENCE} on this machine"
        )
    return max(faithful, key=lambda row: row.times_reference or 0.0).pair


def barred(bundle: Bundle) -> dict[Pair, str]:
    """Return the pairs of runtime and precision that a server must not choose by itself, each with the reason.

    The promotion of the bundle has excluded these pairs, because they lose accuracy or can't be evaluated. The
    exclusions apply on every machine, because a loss of accuracy depends on the encoder. Speed depends on the machine,
    so each machine measures it. The result is empty for a bundle that was not promoted.

    Raises:
        BundleError: the bundle's engines.json is invalid.
    """
    if ENGINES not in bundle.manifest.files:
        return {}
    file = bundle.folder / ENGINES
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["measured"]
        found = {Pair(row["runtime"], row["precision"]): row.get("barred") for row in rows}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{file}: not a table of engines ({type(error).__name__}: {error})") from error
    return {pair: str(why) for pair, why in found.items() if why is not None}


# Cache of this host's measurements, in `isosphere/engines` in the user's cache folder.

CPUINFO = Path("/proc/cpuinfo")
FORMAT = 3
"""Version of the stored format.

The version is part of the cache key, so measurements in older formats are not found.
"""


def recall(bundle: Bundle, options: Options) -> list[Measured]:
    """Return this host's measurements from the cache, or an empty list if the cache has none or its file is damaged."""
    key = _key(bundle, options)
    if not (file := _file(key)):
        return []
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["key"] != key:
            raise ValueError("the file is for another encoder or host")
        if not (rows := [Measured.read(row) for row in stored["measured"]]):
            raise ValueError("no rows")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("%s: not readable (%s); measuring again", file, error)
        return []
    log.info("using the measurements of this machine in %s", file)
    return rows


def remember(bundle: Bundle, options: Options, measured: Sequence[Measured]) -> None:
    """Store the measurements of all pairs of runtime and precision in the cache, atomically.

    If the measurement of any pair failed, nothing is stored, because the failure may be temporary. Nothing is stored
    either if there is no writable cache folder. Without stored measurements, the next start measures again.
    """
    if any(row.error for row in measured):
        return
    key = _key(bundle, options)
    if not (file := _file(key)):
        log.warning(
            "no home directory and no XDG_CACHE_HOME, so measurements are not cached; the next start measures again"
        )
        return
    content = {"key": key, "measured": [asdict(row) for row in measured]}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        log.warning("%s: not written (%s); the next start measures again", file, error.strerror)
    else:
        log.info("%s: written; delete it to measure again", file)


def forget(bundle: Bundle, options: Options) -> None:
    """Delete the cached measurements, so that the next start measures again."""
    if not (file := _file(_key(bundle, options))):
        return
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: not deleted (%s); the next start uses it again", file, error.strerror)


def _key(bundle: Bundle, options: Options) -> dict[str, Any]:
    """Return the key of cached measurements, which contains everything that affects them.

    This is the encoder, its graphs, the available pairs of runtime and precision, and the machine.
    """
    graphs = {precision: file.relative_to(bundle.folder).as_posix() for precision, file in bundle.graphs.items()}
    return {
        "format": FORMAT,
        "fingerprint": bundle.manifest.fingerprint,
        "graphs": {precision: bundle.manifest.files[path] for precision, path in graphs.items()},
        "pairs": [str(pair) for pair in available(bundle, options)],
        "host": host(options),
    }


def _file(key: dict[str, Any]) -> Path | None:
    if not (folder := cache_folder()):
        return None
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return folder / "engines" / f"{name}.json"


def host(options: Options) -> dict[str, Any]:
    """Return facts about the machine: CPU, GPU, usable resources, version and capabilities of each runtime."""
    return {
        "cpu": cpu(),
        "instruction_sets": instruction_sets(),
        "gpu": gpu(options.device),
        "threads": options.threads,
        "device": options.device,
        "runtimes": {name: _facts(name) for name in RUNTIMES},
    }


def cpu(cpuinfo: Path = CPUINFO) -> str:
    names = re.findall(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def instruction_sets(cpuinfo: Path = CPUINFO) -> str:
    """Return a hash of the CPU's instruction sets, or "" if they are unknown.

    On virtual machines and on ARM, the system does not name the CPU's model, so only this hash distinguishes CPUs.
    """
    found = re.search(r"^(?:flags|Features)\s*:.*$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return hashlib.sha256(found[0].encode()).hexdigest()[:16] if found else ""


def _facts(name: str) -> dict[str, Any] | None:
    try:
        return RUNTIMES[name].facts()
    except RuntimeUnavailable:
        return None
