"""Tests of transformers folders that are contradictory or incomplete, or contain code."""

from __future__ import annotations

import errno
import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.bundle.sources import SourceError
from models.encoder.cross_encoder import CrossEncoder
from models.encoder.encoder import Encoder
from models.encoder.pretrained import reading, tokenizer
from models.errors import Failed

TEXTS = ["The man plays the guitar.", "a", ""]


@pytest.fixture
def folder(tiny_backbone: Path, tmp_path: Path) -> Path:
    """Copy the tiny backbone, to be changed."""
    return Path(shutil.copytree(tiny_backbone, tmp_path, dirs_exist_ok=True))


def test_weights_of_another_architecture_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(SourceError, match=r"lack \d+ tensors.*layer\.2"):
        Encoder.load(folder)


def test_a_tokenizer_without_tokens_of_its_own_is_refused(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(SourceError, match=r"adds no special tokens such as \[CLS\]"):
        Encoder.load(folder)


@pytest.mark.parametrize("family", ["bert", "roberta", "t5", "mpnet", "deberta-v2"])
def test_a_folder_without_tokenizer_files_is_refused(family: str, tmp_path: Path) -> None:
    """Refuse the tokenizer that transformers makes up, because it has only special tokens."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with reading(tmp_path), pytest.raises(SourceError, match=f"^{tmp_path}: has no tokenizer files"):
        tokenizer(tmp_path)


def test_a_tokenizer_that_fails_on_unknown_words_is_refused_on_one_line(
    folder: Path, tiny_cross_encoder: Path, tmp_path: Path
) -> None:
    """Refuse such a tokenizer, because the library raises a plain `Exception` for a text with an unknown word."""
    cross = Path(shutil.copytree(tiny_cross_encoder, tmp_path / "cross"))
    for kind, place in ((CrossEncoder, cross), (Encoder, folder)):
        described = json.loads((place / "tokenizer.json").read_text())
        described["model"]["unk_token"] = "[NONE]"
        (place / "tokenizer.json").write_text(json.dumps(described))
        with pytest.raises(SourceError, match=r"the tokenizer failed: WordPiece error: Missing [^\n]*$"):
            kind.load(place)


def test_a_folder_without_a_tokenizer_is_refused_on_one_line(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=f"^{folder}: .*tokenizer[^\n]*$"):
        Encoder.load(folder)


@pytest.mark.parametrize(
    ("file", "said", "message"),
    [
        ("config.json", {"intermediate_size": 40}, r"encoder\.layer.* is \(64.*, but config\.json says \(40"),
        ("config.json", {"hidden_size": "32"}, "hidden_size"),
        ("config.json", {"hidden_act": "foo"}, r"not in the format of transformers \(KeyError: 'foo'\)"),
        ("config.json", {"num_attention_heads": 0}, "not in the format of transformers"),
        ("tokenizer_config.json", {"model_max_length": "512"}, "model_max_length must be a number, not '512'"),
    ],
)
def test_files_that_contradict_each_other_are_refused_on_one_line(
    file: str, said: dict[str, object], message: str, folder: Path
) -> None:
    """Refuse these files, because transformers would replace the mismatched weights by random ones."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    with pytest.raises(SourceError, match=f"^{folder}[^\n]*{message}[^\n]*$"):
        Encoder.load(folder)


def test_texts_that_would_be_lowered_first_are_refused_where_the_tokenizer_tells_case(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": true}')
    assert Encoder.load(folder).max_length == 16, "this tokenizer lowers them itself"
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] |= {"lowercase": False, "strip_accents": False}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    said = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(said | {"do_lower_case": False}))
    with pytest.raises(SourceError, match="do_lower_case"):
        Encoder.load(folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    assert Encoder.load(folder).max_length == 16


def test_weights_in_half_precision_are_computed_with_in_float32(folder: Path) -> None:
    halved = {name: weight.half() for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(halved, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    loaded = Encoder.load(folder).backbone.state_dict()
    for name, weight in halved.items():
        assert loaded[name].dtype == torch.float32 and torch.equal(loaded[name], weight.float())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    weights[name][0, 0] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SourceError, match=f"^{folder}: its weights contain NaN or infinity, in {name}$"):
        Encoder.load(folder)


@pytest.fixture(params=["own.Own", "someone/else--own.Own"])
def with_code(request: pytest.FixtureRequest, folder: Path) -> Path:
    """Make an encoder with code in its folder or elsewhere. The code leaves a file if it is run."""
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nOwn = None\n")
    code = request.param
    mapped = {"AutoConfig": code, "AutoModel": code, "AutoTokenizer": [code, code]}
    for name in ("config.json", "tokenizer_config.json"):
        said = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**said, "auto_map": mapped}))
    return folder


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def yes(question: str) -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", yes)
    return asked


def test_weights_of_a_known_family_are_read_without_the_code_beside_them(
    tiny_backbone: Path, with_code: Path, questions: list[str]
) -> None:
    expected = Encoder.load(tiny_backbone).encode(TEXTS)
    np.testing.assert_array_equal(Encoder.load(with_code).encode(TEXTS), expected)
    assert not (with_code / "ran").exists() and not questions


def test_weights_that_need_code_of_their_own_are_refused_and_nobody_is_asked(
    with_code: Path, questions: list[str]
) -> None:
    config = json.loads((with_code / "config.json").read_text())
    (with_code / "config.json").write_text(json.dumps({**config, "model_type": "own"}))
    with pytest.raises(SourceError, match="such code is never run"):
        Encoder.load(with_code)
    assert not (with_code / "ran").exists() and not questions


def test_a_tokenizer_that_needs_code_of_its_own_asks_nobody(with_code: Path, questions: list[str]) -> None:
    described = json.loads((with_code / "tokenizer_config.json").read_text())
    (with_code / "tokenizer_config.json").write_text(json.dumps({**described, "tokenizer_class": "Own"}))
    with suppress(SourceError):  # The tokenizer may be the family's own, made from its tokenizer.json.
        Encoder.load(with_code)
    assert not (with_code / "ran").exists() and not questions


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("unable to mmap 6442450944 bytes from file <weights>: Cannot allocate memory (12)"),
    ],
)
def test_a_lack_of_memory_is_no_fault_of_the_files(error: Exception) -> None:
    with pytest.raises(Failed, match="encoder: there is not enough memory"), reading(Path("encoder")):
        raise error
