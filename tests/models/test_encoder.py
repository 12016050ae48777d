from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from models.encoder import Encoder, dropout_off
from models.pooling import POOLINGS
from models.sources import SourceError

TEXTS = ["The man plays the guitar.", "a", "", "The river runs to the sea and the sun is hot in the morning."]


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> Encoder:
    return Encoder.load(tiny_backbone, pooling="mean")


def test_a_text_has_one_vector_alone_or_in_any_batch(encoder: Encoder) -> None:
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    by_twos = encoder.encode(TEXTS, batch_size=2)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together, by_twos, atol=1e-5)


def test_encode_leaves_the_mode_as_it_was_and_takes_no_gradient(encoder: Encoder) -> None:
    encoder.train()
    first, second = encoder.encode(TEXTS), encoder.encode(TEXTS)
    assert encoder.training
    np.testing.assert_array_equal(first, second)
    encoder.eval()
    encoder.encode(TEXTS)
    assert not encoder.training


def test_dropout_off_makes_two_passes_identical_and_dropout_on_does_not(encoder: Encoder) -> None:
    batch = encoder.tensors(encoder.tokenizer.encode(TEXTS))
    encoder.train()
    with dropout_off(encoder):
        assert torch.equal(encoder(*batch), encoder(*batch))
    assert not torch.equal(encoder(*batch), encoder(*batch))


def test_dropout_comes_back_after_an_error(encoder: Encoder) -> None:
    encoder.train()
    with pytest.raises(RuntimeError), dropout_off(encoder):
        raise RuntimeError
    assert encoder.training


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_never_reaches_the_vector(tiny_backbone: Path, pooling: str) -> None:
    encoder = Encoder.load(tiny_backbone, pooling=pooling).eval()
    tokens = encoder.tokenizer.encode([TEXTS[0]])
    ids, mask = encoder.tensors(tokens)
    padded_ids = torch.nn.functional.pad(ids, (0, 7), value=5)
    padded_mask = torch.nn.functional.pad(mask, (0, 7))
    with torch.inference_mode():
        torch.testing.assert_close(encoder(padded_ids, padded_mask), encoder(ids, mask), atol=1e-5, rtol=1e-5)


def test_an_unknown_pooling_names_the_known_ones(tiny_backbone: Path) -> None:
    with pytest.raises(ValueError, match="cls, mean, first_last"):
        Encoder.load(tiny_backbone, pooling="max")


def test_weights_of_another_architecture_are_refused(tiny_backbone: Path, tmp_path: Path) -> None:
    for file in tiny_backbone.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(SourceError, match=r"lack \d+ tensors.*layer\.2"):
        Encoder.load(tmp_path)


@pytest.fixture
def described(tiny_backbone: Path, tmp_path: Path) -> Path:
    """The tiny backbone with mean pooling, as sentence-transformers wrote it for years."""
    for file in tiny_backbone.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    describe(tmp_path, "sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling")
    pool(tmp_path, pooling_mode_cls_token=False, pooling_mode_mean_tokens=True, pooling_mode_max_tokens=False)
    return tmp_path


def describe(folder: Path, *types: str) -> None:
    modules = [{"idx": i, "name": str(i), "path": f"{i}_" if i else "", "type": kind} for i, kind in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))


def pool(folder: Path, **modes: object) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))


NEW = (
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
)


def test_folders_of_old_and_new_sentence_transformers_say_their_pooling(described: Path) -> None:
    assert Encoder.load(described).pooling == "mean"
    describe(described, *NEW, "sentence_transformers.base.modules.normalize.Normalize")
    pool(described, pooling_mode="mean", include_prompt=True)
    assert Encoder.load(described).pooling == "mean"


@pytest.mark.parametrize(
    "module", ["sentence_transformers.models.Dense", "sentence_transformers.sentence_transformer.modules.LayerNorm"]
)
def test_a_module_that_would_change_the_vectors_is_refused_by_name(described: Path, module: str) -> None:
    describe(described, *NEW, module)
    with pytest.raises(SourceError, match=rf"modules\.json: the module {module.rpartition('.')[2]} \(2_\)"):
        Encoder.load(described)


@pytest.mark.parametrize(
    "modules", ['{"0": "Transformer"}', '[{"type": "Pooling"}]', '["Pooling"]', "[1]", "5", "null"]
)
def test_modules_that_are_none_are_told_by_their_file(described: Path, modules: str) -> None:
    (described / "modules.json").write_text(modules)
    with pytest.raises(SourceError, match=r"modules\.json: not a list of modules"):
        Encoder.load(described)


FILES = ["1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_object_is_named(described: Path, name: str) -> None:
    (described / name).write_text("[1]")
    with pytest.raises(SourceError, match=rf"{re.escape(name)}: not an object"):
        Encoder.load(described)


@pytest.mark.parametrize("name", ["modules.json", *FILES])
def test_a_file_that_is_no_json_is_named(described: Path, name: str) -> None:
    (described / name).write_bytes(b'{"a": \xff')
    with pytest.raises(SourceError, match=rf"{re.escape(name)}: not JSON"):
        Encoder.load(described)


@pytest.mark.parametrize(
    ("name", "said", "named"),
    [
        ("sentence_bert_config.json", {"max_seq_length": "16"}, "max_seq_length must be a whole number above 0"),
        ("sentence_bert_config.json", {"max_seq_length": 16.0}, "max_seq_length must be a whole number above 0"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length must be a whole number above 0"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts must be an object of names and texts"),
        ("config_sentence_transformers.json", {"prompts": {"query": None}}, "prompts must be an object"),
    ],
)
def test_a_setting_of_another_type_is_named(described: Path, name: str, said: dict[str, object], named: str) -> None:
    (described / name).write_text(json.dumps(said))
    with pytest.raises(SourceError, match=f"{name}: {named}"):
        Encoder.load(described)


def test_a_prompt_before_every_text_is_told_to_be_left_out(described: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (described / "config_sentence_transformers.json").write_text(json.dumps(said))
    assert Encoder.load(described).prompts == {"query": "query: "}
    (told,) = (record.getMessage() for record in caplog.records if record.name == "models.declaration")
    assert "default_prompt_name 'query' is left out; serve with --default-prompt-name" in told


def test_no_length_is_no_default_one(described: Path) -> None:
    with pytest.raises(ValueError, match="max_length 0 leaves no room"):
        Encoder.load(described, max_length=0)


def test_a_tokenizer_without_tokens_of_its_own_is_refused(described: Path) -> None:
    tokenizer = json.loads((described / "tokenizer.json").read_text())
    (described / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    (described / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(SourceError, match=r"puts no \[CLS\]"):
        Encoder.load(described)


def test_a_folder_without_a_tokenizer_is_refused_on_one_line(described: Path) -> None:
    (described / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=f"^{described}: .*tokenizer[^\n]*$"):
        Encoder.load(described)


@pytest.mark.parametrize(
    ("file", "said", "message"),
    [
        ("config.json", {"intermediate_size": 40}, r"encoder\.layer.* is \(64.*, where config\.json says \(40"),
        ("config.json", {"hidden_size": "32"}, "hidden_size"),
        ("config.json", {"hidden_act": "foo"}, r"not what transformers writes \(KeyError: 'foo'\)"),
        ("config.json", {"num_attention_heads": 0}, "not what transformers writes"),
        ("tokenizer_config.json", {"model_max_length": "512"}, "model_max_length must be a number, not '512'"),
        ("manifest.json", {"pooling": "mean"}, "not a bundle's manifest"),
        ("manifest.json", {"pooling": "mean", "max_length": "16", "prompts": {}}, "not a bundle's manifest"),
        ("manifest.json", {"pooling": "max", "max_length": 16, "prompts": {}}, "not a bundle's manifest"),
    ],
)
def test_files_that_contradict_each_other_are_refused_on_one_line(
    file: str, said: dict[str, object], message: str, described: Path
) -> None:
    """transformers would draw the weights that do not fit."""
    path = described / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | said))
    with pytest.raises(SourceError, match=f"^{described}[^\n]*{message}[^\n]*$"):
        Encoder.load(described)


def test_texts_that_would_be_lowered_first_are_refused_where_the_tokenizer_tells_case(described: Path) -> None:
    (described / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": true}')
    assert Encoder.load(described).max_length == 16, "this tokenizer lowers them itself"
    tokenizer = json.loads((described / "tokenizer.json").read_text())
    tokenizer["normalizer"] |= {"lowercase": False, "strip_accents": False}
    (described / "tokenizer.json").write_text(json.dumps(tokenizer))
    said = json.loads((described / "tokenizer_config.json").read_text())
    (described / "tokenizer_config.json").write_text(json.dumps(said | {"do_lower_case": False}))
    with pytest.raises(SourceError, match="do_lower_case"):
        Encoder.load(described)
    (described / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    assert Encoder.load(described).max_length == 16


@pytest.mark.parametrize(
    "modes",
    [
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode": ["cls", "mean"]},
        {"pooling_mode": "max"},
    ],
)
def test_poolings_that_are_joined_or_unknown_are_refused(described: Path, modes: dict[str, object]) -> None:
    pool(described, **modes)
    with pytest.raises(SourceError, match=r"1_Pooling/config\.json: only the poolings cls and mean are known"):
        Encoder.load(described)


def test_length_is_bounded_by_what_the_positions_allow(tiny_backbone: Path) -> None:
    assert Encoder.load(tiny_backbone).max_length == 64
    assert Encoder.load(tiny_backbone, max_length=1000).max_length == 64
    assert Encoder.load(tiny_backbone, max_length=32).max_length == 32


@pytest.fixture(params=["own.Own", "someone/else--own.Own"])
def with_code(request: pytest.FixtureRequest, tiny_backbone: Path, tmp_path: Path) -> Path:
    """An encoder with code of its own, in the folder or elsewhere, which leaves a file if it is run."""
    for file in tiny_backbone.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nOwn = None\n")
    code = request.param
    mapped = {"AutoConfig": code, "AutoModel": code, "AutoTokenizer": [code, code]}
    for name in ("config.json", "tokenizer_config.json"):
        said = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps({**said, "auto_map": mapped}))
    return tmp_path


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
    with suppress(SourceError):  # or the family's own, by its tokenizer.json
        Encoder.load(with_code)
    assert not (with_code / "ran").exists() and not questions
