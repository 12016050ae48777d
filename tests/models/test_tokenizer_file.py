"""Tests of malicious tokenizer files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from models.bundle import bundle
from models.bundle.bundle import BundleError
from models.bundle.tokenizer import Tokenizer, TokenizerFailure, repeats_a_group

KNOWN = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "xlm-roberta": " {2,}",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{Lm}]+(?i:'s|'t)?|\p{N}{1,3}",
    "escaped": r"\(a\)+[)]+",
}
SLOW = [
    r"(a+)+$",
    r"(a|aa)*b",
    r"x(?:a?){30}",
    r"([)]|a)+",
    r"(?i:(b)c)*",
    r"a(?#[)(a+)+b",
    r"(?x)(a+) +b",
    r"(?<n>a|b\g<n>)",
]


@pytest.mark.parametrize("pattern", KNOWN.values(), ids=KNOWN)
def test_expressions_of_known_families_are_taken(pattern: str) -> None:
    assert not repeats_a_group(pattern)


@pytest.mark.parametrize("pattern", SLOW)
def test_an_expression_that_may_take_for_ever_is_refused(tiny_backbone: Path, tmp_path: Path, pattern: str) -> None:
    for where in ("normalizer", "pre_tokenizer"):
        file = splitting(tiny_backbone, tmp_path, pattern, where)
        with pytest.raises(ValueError, match=r"tokenizer\.json: the regular expression .* repeats a group"):
            Tokenizer(file, max_length=8)


def test_what_gives_up_all_the_same_says_so(tiny_backbone: Path, tmp_path: Path) -> None:
    """Convert the failure to an exception, because the library's own panic would end the process."""
    tokenizer = Tokenizer(splitting(tiny_backbone, tmp_path, "a*a*a*a*a*a*a*$", "pre_tokenizer"), max_length=8)
    for work in (tokenizer.encode, tokenizer.pieces):
        with pytest.raises(TokenizerFailure, match=r"the tokenizer failed: .*retry.limit"):
            work(["a" * 300 + "c"])
    assert len(tokenizer.encode(["the man"])) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"[" * 100_000, b'{"model": {"type": "Nothing"}}'])
def test_what_is_no_tokenizer_is_an_error_in_one_line(tiny_bundle: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"^tokenizer\.json: .*$"):
        Tokenizer(tmp_path / "tokenizer.json", max_length=8)
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, folder)
    opened = bundle.load(folder)
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"tokenizer\.json: "):
        _ = opened.tokenizer


def splitting(backbone: Path, folder: Path, pattern: str, where: str) -> Path:
    described: dict[str, Any] = json.loads((backbone / "tokenizer.json").read_text())
    step: dict[str, Any] = {"pattern": {"Regex": pattern}}
    step |= (
        {"type": "Replace", "content": ""}
        if where == "normalizer"
        else {"type": "Split", "behavior": "Isolated", "invert": False}
    )
    described[where] = step
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(described))
    return file
