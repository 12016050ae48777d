"""A sentence encoder: backbone, pooling and, where one was fitted, a transform. No head, no loss, no normalisation."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from models import origin as origins
from models import pretrained
from models import transform as transforms
from models.adapter import Adapter
from models.declaration import declared
from models.dense import Layers
from models.origin import Origin
from models.pooling import AVERAGED_LAYERS, parts, pool
from models.precision import full_precision
from models.pretrained import reading
from models.sources import SourceError, backbone_folder, base_of, check_fetched, opened_adapter, resolve, weights_sha256
from models.tokenizer import Tokenizer, Tokens
from models.transform import Transform

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

LONGEST = 512


class Encoder(nn.Module):
    """Token ids (N, L) to vectors (N, D): pooled, then transformed if there is a transform."""

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
            # Pretraining's own head: kept for others to find in the saved folder, but no vector here passes through.
            backbone.pooler.requires_grad_(False)
        self.backbone = backbone
        self.pooling = pooling
        self.transform: Transform | None = None
        self.max_length = max_length
        self.prompts = dict(prompts or {})
        self.origin = origin or Origin()
        self.hub_tokenizer = hub_tokenizer
        self.tokenizer = _fast_tokenizer(hub_tokenizer, max_length)
        if transform is not None:
            self.attach(transform)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        pooling: str | None = None,
        max_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
    ) -> Self:
        """The encoder under a name, in a folder or in a bundle; an adapter is merged into its base.

        Pooling and length default to what the folder says in sentence-transformers' files, else to `cls` and 512 or
        what the tokenizer says. No length is above the number of positions.
        `prompts` stand beside those that it names, or in their place.
        Attention is the eager implementation: the faster one where dropout is on (training on CPU), and the only
        one whose exported graph ONNX Runtime knows how to fuse.

        Raises:
            SourceError: the folder holds no encoder that can be read, its transform belongs to another pooling, its
                tokenizer to another embedding table, or its weights are not finite.
            AdapterError: the adapter does not fit its base.
        """
        folder = resolve(str(source))
        with reading(folder):
            adapter = opened_adapter(folder)
            base = base_of(adapter) if adapter else folder
            check_fetched(base)
            said = declared(folder)
            place = backbone_folder(base)
            backbone = _backbone(place)
            if adapter:
                _merge(adapter, backbone, base)
            hub_tokenizer = pretrained.tokenizer(place, lowers=bool(said.get("lower")))
            own = said.get("pooling", "cls")
            transform = _transform(folder, said, width=int(backbone.config.hidden_size) * len(parts(own)))
            if transform and pooling not in (None, own):
                raise SourceError(f"{folder}: its {transform.kind} transform belongs to {own} pooling, not {pooling}")
            prompts = {**(said.get("prompts") or {}), **(prompts or {})}
            if any(prompts.values()) and said.get("prompts_left_out"):
                raise SourceError(f"{folder}: include_prompt of its Pooling is false: here prompts are pooled")
            if max_length is None:
                max_length = said.get("max_length", min(LONGEST, hub_tokenizer.model_max_length))
            elif max_length > _positions(backbone):
                log.warning("%s reads %d tokens, not %d", source, _positions(backbone), max_length)
        made = cls(
            backbone,
            hub_tokenizer,
            pooling=pooling or own,
            max_length=min(max_length, _positions(backbone)),
            prompts=prompts,
            transform=transform,
            origin=origins.read(str(source), folder),
        )
        with reading(folder):
            made.tokenizer.check_rows(len(backbone.get_input_embeddings().get_parameter("weight")))
            _check_finite(made, folder)
        return made

    @property
    def dim(self) -> int:
        """D, the width of the vectors."""
        return self.pooled_dim if self.transform is None else self.transform.out

    @property
    def pooled_dim(self) -> int:
        """The width of the pooled vectors, which is what a transform takes."""
        return int(self.backbone.config.hidden_size) * len(parts(self.pooling))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.backbone.device

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """Vectors (N, D) of token ids and their mask, each (N, L); `inputs` are the backbone's other ones."""
        return self.pooled(self.layers(input_ids, attention_mask, **inputs), attention_mask)

    def layers(self, input_ids: Tensor, attention_mask: Tensor | None, **inputs: Any) -> Sequence[Tensor]:
        """What the pooling reads, each (N, L, D): the last layer alone, or every one from the embeddings on."""
        averaged = self.pooling in AVERAGED_LAYERS
        output = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=averaged, **inputs
        )
        # For some families transformers 4 ends hidden_states before the last normalisation, 5 behind it for all.
        return (*output.hidden_states[:-1], output.last_hidden_state) if averaged else (output.last_hidden_state,)

    def pooled(self, layers: Sequence[Tensor], attention_mask: Tensor) -> Tensor:
        """Vectors (N, D), float32 at least, of what `layers` gave for sentences with this mask (N, L)."""
        vectors = pool(self.pooling, [full_precision(each) for each in layers], attention_mask)
        return vectors if self.transform is None else self.transform(vectors)

    def attach(self, transform: Transform) -> None:
        """Pooled vectors pass through `transform` from here on; it stays as it is, whatever is trained around it.

        Raises:
            ValueError: it takes vectors of another width.
        """
        if transform.dim != self.pooled_dim:
            raise ValueError(f"the transform takes {transform.dim} dimensions, pooled vectors have {self.pooled_dim}")
        self.transform = transform.requires_grad_(False).to(self.device)

    def tensors(self, batch: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """`input_ids` and `attention_mask` (N, L) on the encoder's device."""
        ids, mask = self.tokenizer.pad(batch)
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)

    def encode(self, texts: Sequence[str], *, batch_size: int = 128) -> NDArray[np.float32]:
        """Vectors (N, D) of `texts` in their order, dropout off, no gradient; batches are cut by length."""
        tokens = self.tokenizer.encode(texts)
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda i: -len(tokens[i]))
        with torch.inference_mode(), dropout_off(self):
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                vectors[rows] = self(*self.tensors([tokens[i] for i in rows])).float().cpu().numpy()
        return vectors

    def save(self, folder: Path) -> None:
        """Weights, architecture and tokenizer in the hub's format, and the transform's weights.

        What pooling and transform are is the bundle's to say.
        """
        try:
            self.backbone.save_pretrained(folder, max_shard_size="100GB")
            if self.transform is not None:
                transforms.save(self.transform, folder)
        except SafetensorError as error:  # all that it says of a full disk
            raise OSError(errno.EIO, str(error)) from error
        save_tokenizer(self.hub_tokenizer, folder)


def save_tokenizer(hub_tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """In files that transformers 4 and 5 read alike."""
    hub_tokenizer.save_pretrained(folder)
    described = folder / "tokenizer_config.json"  # transformers 5 knows a plain fast tokenizer by both, 4 by one
    named = described.read_text(encoding="utf-8").replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"')
    described.write_text(named, encoding="utf-8")
    special = folder / "special_tokens_map.json"
    special.write_text(json.dumps(hub_tokenizer.special_tokens_map, indent=2) + "\n", encoding="utf-8")


@contextmanager
def dropout_off(encoder: nn.Module) -> Iterator[None]:
    """Evaluation mode for the block, then whatever mode it was in.

    The whole module is switched: attention dropout is a functional call that follows the attention module's own
    `training` flag, so switching off `nn.Dropout` modules alone leaves it on.
    """
    before = encoder.training
    encoder.eval()
    try:
        yield
    finally:
        encoder.train(before)


def _transform(folder: Path, said: Mapping[str, Any], *, width: int) -> Transform | None:
    """What stands behind a pooling of this width: of a bundle or an adapter as recorded, else modules."""
    if fitted := said.get("transform"):
        return transforms.load(folder, fitted)
    return Layers.read(said.get("behind", []), dim=width, truncate=said.get("truncate"))


def _backbone(folder: Path) -> PreTrainedModel:
    backbone: PreTrainedModel
    backbone, missing, _ = pretrained.weights(pretrained.encoder_class(folder), folder, attn_implementation="eager")
    if any(key.startswith("pooler.") for key in missing):
        backbone.register_module("pooler", None)  # the checkpoint has none: random weights must not reach a bundle
    if absent := sorted(key for key in missing if not key.startswith("pooler.")):
        raise SourceError(f"{folder}: the weights lack {len(absent)} tensors of this architecture, e.g. {absent[0]}")
    return backbone


def _check_finite(encoder: Encoder, folder: Path) -> None:
    """Look for weights that are no numbers, which every step and every fit would be blamed for later.

    Raises:
        SourceError: there are some; names the tensor.
    """
    fitted = encoder.transform.state_dict() if encoder.transform else {}
    for name, tensor in (*encoder.backbone.named_parameters(), *fitted.items()):
        if not tensor.isfinite().all():
            raise SourceError(f"{folder}: its weights hold NaN or infinity, in {name}")


def _merge(adapter: Adapter, backbone: PreTrainedModel, base: Path) -> None:
    """Put the merged weights in the place of the base's.

    Raises:
        AdapterError: the adapter was made for another base.
    """
    adapter.identity(adapter.base, weights_sha256(base))
    state = {name: tensor.numpy() for name, tensor in backbone.state_dict().items()}
    backbone.load_state_dict({n: torch.from_numpy(x) for n, x in adapter.updates(state).items()}, strict=False)


def _fast_tokenizer(hub_tokenizer: PreTrainedTokenizerBase, max_length: int) -> Tokenizer:
    with TemporaryDirectory() as folder:
        hub_tokenizer.save_pretrained(folder)
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise SourceError(f"{type(hub_tokenizer).__name__} has no fast form (tokenizer.json)")
        return Tokenizer(file, max_length=max_length)


def position_embeddings(backbone: PreTrainedModel) -> nn.Embedding | None:
    """The table of learnt positions, None where there is none."""
    table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    return table if isinstance(table, nn.Embedding) else None


def _positions(backbone: PreTrainedModel) -> int:
    """The longest text the position embeddings allow; those of RoBERTa and its kin begin after a padding index."""
    positions = int(getattr(backbone.config, "max_position_embeddings", LONGEST))
    table = position_embeddings(backbone)
    return positions if table is None or table.padding_idx is None else positions - table.padding_idx - 1
