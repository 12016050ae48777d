"""Tests of `--bundle` with an encoder of the repository or an adapter's folder: the exported bundle is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import Future
from pathlib import Path

import pytest

from models.bundle import adapter, bundle, sources
from models.errors import Failed, Refused
from serving.commands.loading import Opened, with_bundles
from serving.commands.serve import serve
from serving.settings import Settings, read_settings


def _settings(data: Path, *bundles: str) -> Settings:
    return read_settings(["--data", str(data), "--no-demo", *(word for one in bundles for word in ("--bundle", one))])


@pytest.mark.slow
def test_an_encoder_is_assembled_once_and_has_its_recorded_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = with_bundles(_settings(tmp_path, "minilm+default")).bundles
    made, said = bundle.load(folder).manifest, sources.manifest_of("minilm+default")
    assert said is not None and folder.is_relative_to(tmp_path)
    assert (made.name, made.fingerprint, made.scores) == ("default", said.fingerprint, said.scores)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("assembled again"))
    assert with_bundles(_settings(tmp_path, "minilm+default")).bundles == (folder,)
    shutil.copytree(sources.resolve("minilm+default"), tmp_path / "other")
    facts = json.loads((tmp_path / "other" / adapter.MANIFEST).read_text())
    # The config.json of another version of transformers gives another fingerprint.
    (tmp_path / "other" / adapter.MANIFEST).write_text(json.dumps({**facts, "fingerprint": "0" * 64}))
    assert with_bundles(_settings(tmp_path, str(tmp_path / "other"))).bundles == (folder,)


@pytest.mark.slow
def test_two_adapters_in_folders_of_one_name_are_two_bundles(tmp_path: Path) -> None:
    names = [name.removeprefix("minilm+") for name in sources.shipped()][:2]
    for name in names:
        shutil.copytree(sources.resolve(f"minilm+{name}"), tmp_path / name / "adapter")
    made = with_bundles(_settings(tmp_path / "var", *(str(tmp_path / name / "adapter") for name in names)))
    assert [bundle.load(folder).manifest.name for folder in made.bundles] == names


@pytest.mark.parametrize(
    ("field", "text"), [("fingerprint", "a/../../served"), ("name", "../../served"), ("name", "/served")]
)
def test_a_manifest_names_no_folder_outside_the_kept_bundles(
    field: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sources.resolve("minilm+default"), tmp_path / "theirs")
    said = json.loads((tmp_path / "theirs" / adapter.MANIFEST).read_text())
    (tmp_path / "theirs" / adapter.MANIFEST).write_text(json.dumps({**said, field: text}))
    monkeypatch.setattr("subprocess.run", lambda command, **_: subprocess.CompletedProcess(command, 0, "", ""))
    made = sources.as_bundle(str(tmp_path / "theirs"), tmp_path / "kept")
    assert made.parent.resolve() == tmp_path / "kept"


def test_a_bundle_is_served_from_where_it_is(tiny_bundle: Path, tmp_path: Path) -> None:
    assert with_bundles(_settings(tmp_path, str(tiny_bundle))).bundles == (tiny_bundle,)


def test_what_can_t_be_served_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=r"minilm\+nothing: .*minilm\+default"):
        with_bundles(_settings(tmp_path, "minilm+nothing"))
    broken = tmp_path / "broken"
    shutil.copytree(sources.resolve("minilm+default"), broken)
    os.truncate(broken / adapter.WEIGHTS, 1000)
    with pytest.raises(Refused, match=r"adapter_model\.safetensors"):
        with_bundles(_settings(tmp_path, str(broken)))
    monkeypatch.setattr("sys.executable", shutil.which("false"))  # The child process ends without a message.
    with pytest.raises(Failed, match=r"minilm\+default: the export failed with exit status 1"):
        with_bundles(_settings(tmp_path / "other", "minilm+default"))


@pytest.mark.parametrize(("error", "status"), [(Refused("no such bundle"), 2), (Failed("the disk is full"), 1)])
def test_only_a_failed_export_is_worth_another_start(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    opening: Future[Opened] = Future()
    opening.set_exception(error)
    assert serve(opening) == status
    assert capsys.readouterr().err == f"isosphere: {error}\n"


def test_a_module_of_the_working_directory_is_not_run_instead_of_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, said in (("own", "ours"), ("project", "theirs")):
        (tmp_path / folder / "models").mkdir(parents=True)
        (tmp_path / folder / "models" / "__init__.py").touch()
        program = f"import sys\nprint('isosphere: {said}', file=sys.stderr)\nsys.exit(2)\n"
        (tmp_path / folder / "models" / "__main__.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path / "project")
    with pytest.raises(Refused, match=r"^minilm: ours$"):
        sources.as_bundle("minilm", tmp_path / "kept")
