"""A sentence encoder: a backbone, a pooling and an optional fitted transform."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.bundle import origin as origins
from models.bundle import sources
from models.bundle.adapter import Adapter
from models.bundle.origin import Origin
from models.bundle.sources import SourceError
from models.bundle.tokenizer import UNKNOWN_WORDS, Tokenizer, Tokens
from models.encoder import pretrained
from models.encoder import transform as transforms
from models.encoder.config import read_config
from models.encoder.pooling import AVERAGED_LAYERS, parts, pool
from models.encoder.pretrained import reading
from models.encoder.transform import Layers, Transform
from models.errors import Refused

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

DEFAULT_MAX_LENGTH = 512
MIN_NORM = 1e-12
"""Minimum length by which a vector is divided, so that a zero vector stays zero."""


class Encoder(nn.Module):
    """Encoder from token ids (N, L) to vectors (N, D), which are not normalised."""

    __call__: Callable[..., Tensor]  # nn.Module's returns Any.

    def __init__(
        self,
        backbone: PreTrainedModel,
        hub_tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: str,
        max_length: int,
        prompts: Mapping[str, str] | None = None,
        transform: Transform | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__()
        parts(pooling)
        if getattr(backbone, "pooler", None) is not None:
            # The pre-training head is kept, because `save` writes it for other programs. It is not trained, because
            # vectors do not depend on it.
            backbone.pooler.requires_grad_(False)
        self.backbone = backbone
        self.pooling = pooling
        self.transform: Transform | None = None
        self.max_length = max_length
        self.prompts = dict(prompts or {})
        self.origin = origin or Origin()
        self.hub_tokenizer = hub_tokenizer
        self.tokenizer = fast_tokenizer(hub_tokenizer, max_length)
        if transform is not None:
            self.attach(transform)
        _keep_widths(backbone.config, self.dim)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        pooling: str | None = None,
        max_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
    ) -> Self:
        """Load an encoder from a hub id, a folder or a bundle. An adapter is merged into its base.

        By default, `pooling` and `max_length` are those in the folder's manifest or sentence-transformers files.
        Without these files, the pooling is `cls`, and the length is the tokenizer's maximum length, but at most 512.
        The length never exceeds the number of position embeddings. `prompts` are added to the encoder's prompts, and
        replace prompts of the same name.

        Attention uses transformers' eager implementation, which is faster for training with dropout on a CPU. The eager
        implementation is also the only one whose attention ONNX Runtime can fuse after an export.

        Raises:
            SourceError: the folder has no readable encoder; its transform can't be read or was fitted to another
                pooling; its tokenizer has no fast version, has tokens without an embedding, or fails on unknown words;
                there are prompts, but the folder's pooling leaves out prompts; or a weight is not finite.
            AdapterError, BundleError: the adapter is damaged, not supported, or does not fit its base.
            Refused: the adapter keeps only some layers, but the base lacks one of them, or layers of the base's model
                family can't be removed.
            ValueError: `pooling` is unknown, `Tokenizer` refuses the tokenizer or `max_length`, or the transform has
                another input dimension.
        """
        folder = sources.resolve(str(source))
        with reading(folder):
            adapter = sources.opened_adapter(folder)
            base = sources.base_of(adapter) if adapter else folder
            sources.check_fetched(base)
            said = read_config(folder)
            place = sources.backbone_folder(base)
            backbone = _backbone(place)
            if adapter:
                _merge(adapter, backbone, base)
            hub_tokenizer = pretrained.tokenizer(place, lowers=bool(said.get("lower")))
            own = said.get("pooling", "cls")
            transform = _transform(folder, said, width=int(backbone.config.hidden_size) * len(parts(own)))
            if transform and pooling not in (None, own):
                raise SourceError(
                    f"{folder}: its {transform.kind} transform was fitted to {own} pooling, not to {pooling}"
                )
            prompts = {**(said.get("prompts") or {}), **(prompts or {})}
            if any(prompts.values()) and said.get("prompts_left_out"):
                raise SourceError(
                    f"{folder}: its Pooling has include_prompt = false, but the pooling here always includes prompts"
                )
            if max_length is None:
                max_length = said.get("max_length", min(DEFAULT_MAX_LENGTH, hub_tokenizer.model_max_length))
            elif max_length > positions(backbone):
                log.warning("%s has a maximum length of %d tokens, not %d", source, positions(backbone), max_length)
        made = cls(
            backbone,
            hub_tokenizer,
            pooling=pooling or own,
            max_length=min(max_length, positions(backbone)),
            prompts=prompts,
            transform=transform,
            origin=origins.read(str(source), folder),
        )
        with reading(folder):
            made.tokenizer.check_rows(len(backbone.get_input_embeddings().get_parameter("weight")))
            made.tokenizer.encode([UNKNOWN_WORDS])
            fitted = made.transform.state_dict() if made.transform else {}
            pretrained.check_finite(folder, (*backbone.named_parameters(), *fitted.items()))
        return made

    @property
    def dim(self) -> int:
        return self.pooled_dim if self.transform is None else self.transform.out

    @property
    def pooled_dim(self) -> int:
        """Dimension of the vectors after pooling and before `transform`, which may change the dimension."""
        return int(self.backbone.config.hidden_size) * len(parts(self.pooling))

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """Return vectors (N, D) for token ids and mask, each (N, L). `inputs` are additional inputs of the backbone."""
        return self.pooled(self.layers(input_ids, attention_mask, **inputs), attention_mask)

    def layers(self, input_ids: Tensor, attention_mask: Tensor | None, **inputs: Any) -> Sequence[Tensor]:
        """Return the hidden states that the pooling reads, each (N, L, D).

        For a pooling that averages layers, the result has the embedding layer's output and the outputs of all layers.
        For any other pooling, the result has only the last layer's output.
        """
        averaged = self.pooling in AVERAGED_LAYERS
        output = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=averaged, **inputs
        )
        # In transformers 4, hidden_states of some model families end before the last normalisation. In transformers 5,
        # they always end after it.
        return (*output.hidden_states[:-1], output.last_hidden_state) if averaged else (output.last_hidden_state,)

    def pooled(self, layers: Sequence[Tensor], attention_mask: Tensor) -> Tensor:
        """Pool the hidden states, apply the transform, and return vectors (N, D) in float32 or wider.

        `layers` is a result of the method `layers`.
        """
        vectors = pool(self.pooling, [full_precision(each) for each in layers], attention_mask)
        return vectors if self.transform is None else self.transform(vectors)

    def attach(self, transform: Transform) -> None:
        """Apply `transform` to pooled vectors from now on. Training does not change the transform.

        Raises:
            ValueError: the transform has a different input dimension.
        """
        if transform.dim != self.pooled_dim:
            raise ValueError(
                f"the transform needs {transform.dim} dimensions, but pooled vectors have {self.pooled_dim}"
            )
        self.transform = transform.requires_grad_(False).to(self.device)

    def tensors(self, batch: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """Return `input_ids` and `attention_mask` (N, L) on the encoder's device."""
        ids, mask = self.tokenizer.pad(batch)
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)

    def encode(self, texts: Sequence[str], *, batch_size: int = 128) -> NDArray[np.float32]:
        """Return vectors (N, D) of `texts` in order, without dropout or gradients.

        Texts of similar length are encoded in the same batch.
        """
        tokens = self.tokenizer.encode(texts)
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda i: -len(tokens[i]))
        with torch.inference_mode(), dropout_off(self), fast_linear_layers():
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                vectors[rows] = self(*self.tensors([tokens[i] for i in rows])).float().cpu().numpy()
        return vectors

    def save(self, folder: Path) -> None:
        """Save weights, architecture and tokenizer in the Hugging Face format, and the transform's weights.

        The pooling, and the kind and sizes of the transform, are not saved here. Export writes them to the manifest.
        """
        self.backbone.save_pretrained(folder, max_shard_size="100GB")
        if self.transform is not None:
            transforms.save(self.transform, folder)
        save_tokenizer(self.hub_tokenizer, folder)


class UnitVector(nn.Module):
    """Module for export, with token ids and mask as inputs, each (N, L).

    The first output is the unit vectors (N, D). The second output is the norms (N,) before normalisation. The third
    output is the token vectors (N, L, H), the backbone's last hidden state.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def config(self) -> PretrainedConfig:
        """The backbone's configuration, which optimum reads from the exported module."""
        return self.encoder.backbone.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layers = self.encoder.layers(input_ids, attention_mask)
        pooled = self.encoder.pooled(layers, attention_mask)
        norm = pooled.norm(dim=-1)
        return pooled / norm.clamp_min(MIN_NORM).unsqueeze(-1), norm, full_precision(layers[-1])


def save_tokenizer(hub_tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer in files that transformers 4 and 5 read in the same way."""
    hub_tokenizer.save_pretrained(folder)
    # transformers 5 accepts both names of the plain fast tokenizer's class, transformers 4 only one.
    described = folder / "tokenizer_config.json"
    named = described.read_text(encoding="utf-8").replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"')
    described.write_text(named, encoding="utf-8")
    special = folder / "special_tokens_map.json"
    special.write_text(json.dumps(hub_tokenizer.special_tokens_map, indent=2) + "\n", encoding="utf-8")


def full_precision(x: Tensor) -> Tensor:
    """Convert `x` to float32 if its type has fewer bits."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


@contextmanager
def dropout_off(encoder: nn.Module) -> Iterator[None]:
    """Switch `encoder` to evaluation mode, and restore the previous mode when the `with` block ends.

    The whole module is switched. It would not be enough to switch the `nn.Dropout` modules, because attention dropout
    is a functional call that depends on the attention module's own `training` flag.
    """
    before = encoder.training
    encoder.eval()
    try:
        yield
    finally:
        encoder.train(before)


def fast_linear_layers() -> AbstractContextManager[Any]:
    """Return a context in which oneDNN computes the float32 linear layers on processors from AMD.

    By default, torch uses Intel's MKL, which does not use AVX-512 on AMD's processors. On a Zen 4, oneDNN takes less
    than half the time. Gradients can't pass through these layers. On other processors and under autocast, the context
    has no effect.
    """
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    autocast = torch.is_autocast_enabled("cpu")
    return _OneDnnLinear() if available and _is_amd() and not autocast else nullcontext()


class _OneDnnLinear(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is nn.functional.linear and not kwargs and args[0].device.type == "cpu":
            x, weight, bias = (*args, None)[:3]
            if x.dtype == weight.dtype == torch.float32:
                return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return func(*args, **(kwargs or {}))


@cache
def _is_amd() -> bool:
    described = Path("/proc/cpuinfo")
    return described.exists() and "AuthenticAMD" in described.read_text()


def _transform(folder: Path, said: Mapping[str, Any], *, width: int) -> Transform | None:
    """Load the transform that follows the pooling. Return None if there is none.

    `said` is a result of `read_config`. `width` is the dimension of pooled vectors.
    """
    if fitted := said.get("transform"):
        return transforms.load(folder, fitted)
    return Layers.read(said.get("after_pooling", []), dim=width, truncate=said.get("truncate"))


def _keep_widths(config: PretrainedConfig, dim: int) -> None:
    """Remove the Matryoshka widths above `dim` from `config`. A pooling or a truncation may make vectors narrower."""
    widths = getattr(config, "matryoshka_dimensions", None)
    if isinstance(widths, list) and all(isinstance(one, int) for one in widths):
        config.matryoshka_dimensions = [one for one in widths if one <= dim]


def _backbone(folder: Path) -> PreTrainedModel:
    backbone: PreTrainedModel
    backbone, missing, _ = pretrained.weights(pretrained.encoder_class(folder), folder, attn_implementation="eager")
    if any(key.startswith("pooler.") for key in missing):
        # The pooler is allowed to be missing, because its random weights are not exported.
        backbone.register_module("pooler", None)
    if absent := sorted(key for key in missing if not key.startswith("pooler.")):
        raise SourceError(f"{folder}: the weights lack {len(absent)} tensors of this architecture, e.g. {absent[0]}")
    return backbone


def _merge(adapter: Adapter, backbone: PreTrainedModel, base: Path) -> None:
    """Merge an adapter into the backbone.

    First, the layers that the adapter does not keep are removed. Then the merged weights replace the base's weights.

    Raises:
        AdapterError: the adapter was made for a base with different weights, or changes a weight that the backbone
            lacks or has in another shape.
        Refused: the backbone lacks a layer that the adapter keeps, or layers of its model family can't be removed.
    """
    adapter.identity(adapter.base, sources.weights_sha256(base))
    if adapter.layers is not None:
        keep_layers(backbone, adapter.layers)
    state = {name: tensor.numpy() for name, tensor in backbone.state_dict().items()}
    backbone.load_state_dict({n: torch.from_numpy(x) for n, x in adapter.updates(state).items()}, strict=False)


def fast_tokenizer(hub_tokenizer: PreTrainedTokenizerBase, max_length: int) -> Tokenizer:
    """Return a `Tokenizer` with the fast version of a transformers tokenizer.

    Raises:
        SourceError: the transformers tokenizer has no fast version.
        ValueError: `Tokenizer` refuses the fast version.
    """
    with TemporaryDirectory() as folder:
        hub_tokenizer.save_pretrained(folder)
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise SourceError(f"{type(hub_tokenizer).__name__} has no fast version (tokenizer.json)")
        return Tokenizer(file, max_length=max_length)


def first_position(backbone: PreTrainedModel) -> int:
    """Return the index of the position embedding of a text's first token.

    In RoBERTa, the positions of tokens begin after the padding index.
    """
    table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1


def positions(backbone: PreTrainedModel) -> int:
    """Return the maximum number of tokens that the position embeddings allow."""
    rows = getattr(backbone.config, "max_position_embeddings", None) or 0
    return (rows if rows > 0 else DEFAULT_MAX_LENGTH) - first_position(backbone)  # XLNet, without a limit, has -1.


# The linear layers of a backbone, and the removal of some of its layers.


def linear_layers(backbone: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers by name. The pooler is left out, because vectors don't depend on it."""
    return {
        name: module
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("pooler")
    }


def keep_layers(backbone: PreTrainedModel, kept: Sequence[int]) -> None:
    """Keep only the layers `kept`, counted from 0, in their order.

    The weights of the kept layers, and all weights outside the layers, stay the same.

    Raises:
        Refused: a layer does not exist or is named twice, the order differs from the backbone's, or layers of this
            model family can't be removed.
    """
    parent, name, layers = _layers(backbone)
    if [*kept] != sorted({*kept} & {*range(len(layers))}):
        raise Refused(
            f"layers: {','.join(map(str, kept))}: must be ascending numbers from 0 to {len(layers) - 1} without "
            "repetition"
        )
    setattr(parent, name, nn.ModuleList(layers[i] for i in kept))
    backbone.config.num_hidden_layers = len(kept)


def _layers(backbone: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """Find the list of a backbone's layers. Return its parent module, its name within the parent, and the list itself.

    Raises:
        Refused: the backbone does not have exactly one such list, or its configuration describes each layer separately.
    """
    config = backbone.config
    found = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers
    ]
    if len(found) != 1 or getattr(config, "layer_types", None):
        raise Refused(
            f"layers: layers of a {config.model_type} can't be removed: choose a BERT, RoBERTa, MPNet or DistilBERT"
        )
    return found[0]
