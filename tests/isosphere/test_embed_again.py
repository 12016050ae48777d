"""Tests of `isosphere embed` after a kill, and next to files and processes of other commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosphere import Encoder, load
from isosphere.embed.embedding import Done, Job
from isosphere.embed.outputs import Npy
from models.bundle import disk
from models.errors import Refused
from tests.conftest import PATIENCE
from tests.isosphere.embedding import ENGINE, TEXTS, run, text_file

pytestmark = pytest.mark.usefixtures("small_parts")


class Killed(BaseException):
    """Exception that ends a run like a kill."""


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_a_run_that_is_killed_at_any_step_goes_on(
    encoder: Encoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Kill the run before each of its steps. A step is a rename, or the removal of a part."""
    whole, out = tmp_path / f"whole-{name}", tmp_path / name
    run(encoder, lines, out=whole)
    embedded = 0

    def encode(texts: Sequence[str], **options: Any) -> Any:
        nonlocal embedded
        embedded += len(texts)
        return Encoder.encode(encoder, texts, **options)

    monkeypatch.setattr(encoder, "encode", encode)
    for last in range(100):
        left = last

        def step(original: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return original(*arguments, **options)

        with monkeypatch.context() as patch:
            for owner, method in ((Path, "replace"), (os, "unlink"), (os, "rmdir")):
                original = getattr(owner, method)
                patch.setattr(owner, method, lambda *a, _o=original, **o: step(_o, *a, **o))
            try:
                run(encoder, lines, out=out)
            except Killed:
                continue
        break
    assert last > 5
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / f".{name}.parts").exists()
    embedded = 0
    assert run(encoder, lines, out=out).rows == 18 and embedded == 0


def test_only_missing_parts_are_embedded(
    encoder: Encoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    stop_at = 9

    def encode(texts: Sequence[str], **options: Any) -> Any:
        if len(seen) > stop_at:
            raise Killed
        seen.extend(texts)
        return Encoder.encode(encoder, texts, **options)

    monkeypatch.setattr(encoder, "encode", encode)
    with pytest.raises(Killed):
        run(encoder, lines, out=tmp_path / "out.npy")
    stop_at = 100
    run(encoder, lines, out=tmp_path / "out.npy")
    assert seen == TEXTS * 3


def test_what_another_command_began_or_wrote_is_refused(
    encoder: Encoder, other_bundle: Path, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npy"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Npy, "join", lambda *_: (_ for _ in ()).throw(Killed))
        run(encoder, lines, out=out)
    other = load(other_bundle, engine="onnxruntime", precision="fp32")

    def refusals() -> None:
        with pytest.raises(Refused, match="fingerprint"):
            run(other, lines, out=out)
        with pytest.raises(Refused, match="dimensions was None and is 8"):
            run(encoder, lines, out=out, dimensions=8)
        with pytest.raises(Refused, match=r"b\.txt is new"):
            run(encoder, lines, text_file(tmp_path / "b.txt", ["a"]), out=out)

    refusals()
    run(encoder, lines, out=out)
    refusals()
    text_file(lines, ["a cat"])
    with pytest.raises(Refused, match=r"a\.txt has changed"):
        run(encoder, lines, out=out)
    assert run(encoder, lines, out=out, force=True).rows == len(np.load(out)) == 1


def test_a_file_of_another_program_is_refused(encoder: Encoder, lines: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "out.npy", [1])
    with pytest.raises(Refused, match="--force"):
        run(encoder, lines, out=tmp_path / "out.npy")
    with pytest.raises(Refused, match="only input"):
        run(encoder, tmp_path / "a.parquet", out=tmp_path / "a.parquet")


def test_two_processes_do_not_write_one_file(encoder: Encoder, lines: Path, tmp_path: Path) -> None:
    parts = tmp_path / ".out.npy.parts"
    parts.mkdir()
    with disk.locked_exclusively(parts), pytest.raises(Refused, match="another process"):
        run(encoder, lines, out=tmp_path / "out.npy")


def test_parts_beside_a_complete_file_are_removed_unless_a_process_writes_them(
    encoder: Encoder, lines: Path, tmp_path: Path
) -> None:
    done = run(encoder, lines, out=tmp_path / "out.npy")
    parts = tmp_path / ".out.npy.parts"
    parts.mkdir()
    (parts / "00000000").touch()
    with disk.locked_exclusively(parts):
        assert run(encoder, lines, out=tmp_path / "out.npy") == done
        assert (parts / "00000000").exists()
    assert run(encoder, lines, out=tmp_path / "out.npy") == done
    assert not parts.exists()


def test_what_another_command_writes_meanwhile_is_kept(
    encoder: Encoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, check = tmp_path / "out.npy", Job.check

    def overtaken(*arguments: Any) -> Done:
        with monkeypatch.context() as patch:
            patch.setattr(Job, "check", check)
            run(encoder, lines, out=out, dimensions=8)
        return check(*arguments)

    monkeypatch.setattr(Job, "check", overtaken)
    with pytest.raises(Refused, match="another command"):
        run(encoder, lines, out=out)
    assert np.load(out).shape[1] == 8


def test_an_input_that_changes_meanwhile_is_refused(
    encoder: Encoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(texts: Sequence[str], **options: Any) -> Any:
        if texts:
            text_file(lines, TEXTS)
        return Encoder.encode(encoder, texts, **options)

    monkeypatch.setattr(encoder, "encode", encode)
    with pytest.raises(Refused, match="changed while"):
        run(encoder, lines, out=tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.slow
def test_processes_that_are_killed_leave_a_file_as_one_that_is_not(tiny_bundle: Path, tmp_path: Path) -> None:
    file, out = text_file(tmp_path / "a.txt", TEXTS * 200), tmp_path / "out.parquet"
    code = (
        "import sys; from isosphere.command import main; from isosphere.embed import embedding; embedding.ROWS = 8; "
        "status = main(sys.argv[1:]); print({'torch', 'serving'} & {*sys.modules}); sys.exit(status)"
    )
    command = [sys.executable, "-c", code, "embed", str(file), "--model", str(tiny_bundle), *ENGINE, "--out"]
    whole = subprocess.run([*command, str(tmp_path / "whole.parquet")], capture_output=True, check=True)
    assert whole.stdout == b"set()\n"
    parts = tmp_path / ".out.parquet.parts"
    for stop in (1, 40, 90):
        process = subprocess.Popen([*command, str(out)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and len([*parts.glob("0*")]) < stop and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*command, str(out)], capture_output=True, check=True)
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
