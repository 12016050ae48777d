"""Fixtures that several packages use: a tiny real backbone, and bundles made from it."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

from tests.models.fake_hub import FakeHub, served

T = TypeVar("T")

# No test asserts wall time. The brief profile draws new examples. CI and the nightly run use the same examples each
# time, so that a change is not blamed for an older fault.
settings.register_profile("brief", deadline=None, max_examples=10)
settings.register_profile("steady", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("thorough", deadline=None, derandomize=True)
PROFILES = {"not slow": "brief", "not nightly": "steady"}
"""Hypothesis profiles by the value of pytest's `-m`. For any other value, the thorough profile is used."""

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

OURS = ("isosphere", "models", "training", "serving", "benchmarks", "tests")
PATIENCE = 120.0
"""Maximum seconds that a test waits for an expected event, which may be late on a busy machine."""

WORDS = (
    "the a an of in on to and or not is are was were be has have had do does did will would can could this that it "
    "he she they we you i man woman child dog cat bird fish horse guitar music stage street city river mountain sea "
    "sky sun moon star rain snow wind fire water earth tree flower grass stone house door window table chair book "
    "paper pen word sentence language reader writer teacher student school bank market price money rate year day "
    "night morning evening time hour minute red green blue white black big small long short fast slow hot cold new "
    "old good bad run walk sing play read write eat drink sleep see hear say speak think know find give take make"
).split()


def soon(values: Iterable[T], *names: str, called: Callable[[T], str] = str) -> list[ParameterSet]:
    """Return parameters. Those with these `names` run in every test run, and the others only with the slow tests."""
    return [
        pytest.param(one, id=called(one), marks=[] if called(one) in names else [pytest.mark.slow]) for one in values
    ]


def pytest_configure(config: pytest.Config) -> None:
    """Select the Hypothesis profile: the longer the selected tests take, the more examples are tried."""
    settings.load_profile(PROFILES.get(config.option.markexpr, "thorough"))


def pytest_collection() -> None:
    """Collect no garbage while test modules are imported. They leave little, and the search for it takes seconds."""
    gc.disable()


def pytest_collection_modifyitems(session: pytest.Session) -> None:
    """Turn deprecation warnings of our own code into errors, and let nightly slow tests take an hour.

    The outermost of several marks wins, so this mark also applies to tests that ignore warnings of other packages.
    """
    for item in session.items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(3600))
    for warning in ("DeprecationWarning", "PendingDeprecationWarning"):
        session.add_marker(pytest.mark.filterwarnings(rf"error::{warning}:({'|'.join(OURS)})\b"))


def pytest_collection_finish() -> None:
    """Keep imported modules and collected tests out of garbage collections. With them, each takes half a second.

    Also let torch's loggers pass their records on to the logger `torch`. In each phase of each test, pytest attaches
    two handlers to every logger that does not propagate, and torch has more than fifty of them.
    """
    gc.freeze()
    gc.enable()
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Run a hub for one test, and point the hub's client to it."""
    import huggingface_hub.constants

    with served() as fake:
        template = f"{fake.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", fake.endpoint)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield fake


@pytest.fixture(scope="session", autouse=True)
def _engines_measured_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cache measurements of runtimes for the tests of this session only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _memory_left_alone() -> Iterator[None]:
    """Let no command that a test runs in this process change the allocator or the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.machine.memory.reuse_memory", lambda: None)
        yield


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a BERT of 2 layers and width 32 with random weights. Its vocabulary has whole words and single letters."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *".,!?'\"-",
        *letters,
        *(f"##{c}" for c in letters),
    ]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*pieces, *WORDS]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    folder = tmp_path_factory.mktemp("tiny_backbone")
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,  # The standard deviation makes random vectors different enough for comparisons.
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bundle(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export `tiny_backbone` to a bundle with mean pooling and 64 tokens."""
    from models.encoder.encoder import Encoder
    from models.export.export import export

    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    export(Encoder.load(tiny_backbone, pooling="mean"), folder, name="tiny", backbone="tiny")
    return folder


@pytest.fixture(scope="session")
def tiny_cross_encoder(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a cross-encoder with random weights, of the size of `tiny_backbone` and with token types for pairs."""
    import json
    import shutil

    import torch
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("tiny_cross_encoder")
    shutil.copytree(tiny_backbone, folder, dirs_exist_ok=True)
    torch.manual_seed(1)
    described = json.loads((folder / "tokenizer_config.json").read_text())
    # BERT's own tokenizers use the same types.
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(described | names))
    config = BertConfig.from_pretrained(tiny_backbone, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def cross_bundle(tiny_cross_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export `tiny_cross_encoder` to a bundle with 64 tokens."""
    from models.encoder.cross_encoder import CrossEncoder
    from models.export.cross_encoder import export

    folder = tmp_path_factory.mktemp("bundles") / "cross"
    export(CrossEncoder.load(tiny_cross_encoder), folder, name="cross", backbone="tiny")
    return folder


@pytest.fixture(scope="session")
def other_bundle(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a bundle like `tiny_bundle` with other weights."""
    import torch

    from models.encoder.encoder import Encoder
    from models.export.export import export

    encoder = Encoder.load(tiny_backbone, pooling="mean")
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weights in encoder.backbone.parameters():
            weights.add_(torch.randn(weights.shape, generator=draw), alpha=0.1)
    folder = tmp_path_factory.mktemp("bundles") / "other"
    export(encoder, folder, name="other", backbone="tiny", scores={"STS12": 50.0, "STS13": 51.0})
    return folder


def _data(variable: str) -> Path:
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Return the folder of real evaluation data and Wikipedia (`senteval/downstream`, `retrieval`, `corpus`)."""
    return _data("ISOSPHERE_TEST_DATA")


@pytest.fixture(scope="session")
def goldens() -> Path:
    """Return the folder of values that the papers' published code computes for fixed tensors."""
    return _data("ISOSPHERE_GOLDENS")
