"""Facts from the model card of an encoder's source: base models, licence, languages, citations.

A model card is the README.md of a folder in the hub's format. A bundle's own card (`models.bundle.card`) repeats these
facts, so encoders trained from the bundle inherit them. Facts that are in no card are unknown.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.repocard import metadata_load

from models.bundle.bundle import CARD
from models.bundle.sources import MINILM, hub_id

log = logging.getLogger(__name__)

LICENCE = ("license", "license_name", "license_link")
"""The hub's keys for a licence: an identifier and, if the identifier is `other`, a name and a link."""
UNKNOWN_LICENCE = "unknown"
"""The hub's term for an unknown licence."""

MINILM_CITATIONS = (
    """\
@inproceedings{wang2020minilm,
  title = {MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained Transformers},
  author = {Wang, Wenhui and Wei, Furu and Dong, Li and Bao, Hangbo and Yang, Nan and Zhou, Ming},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2020},
  url = {https://arxiv.org/abs/2002.10957}
}""",
    """\
@inproceedings{reimers2019sentencebert,
  title = {Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks},
  author = {Reimers, Nils and Gurevych, Iryna},
  booktitle = {Proceedings of the 2019 Conference on Empirical Methods in Natural Language Processing},
  year = {2019},
  url = {https://arxiv.org/abs/1908.10084}
}""",
)
"""Citations of MiniLM and of the training of all-MiniLM-L6-v2. The model card of all-MiniLM-L6-v2 has no citations."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of an encoder. Fields of unknown facts are empty."""

    base_models: tuple[str, ...] = ()
    """Hub ids of the base models."""
    licence: Mapping[str, str] = field(default_factory=dict)
    """Licence, as values of the hub's keys; see `LICENCE`."""
    languages: tuple[str, ...] = ()
    """ISO 639 codes of the languages."""
    citations: tuple[str, ...] = ()
    """BibTeX entries."""


def read(name: str, folder: Path) -> Origin:
    """Read the origin of the encoder `name` from the model card in `folder`.

    `name` has one of the forms that `models.bundle.sources.resolve` accepts. For an encoder from the hub,
    `base_models` contains the encoder itself instead of the base models that its card names.
    """
    card = folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    said = _front_matter(card) if text else {}
    licence = {key: said[key] for key in LICENCE if isinstance(said.get(key), str)}
    on_the_hub = hub_id(name)
    cited = re.findall(r"^```bibtex\s*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return Origin(
        base_models=(on_the_hub,) if on_the_hub else _strings(said.get("base_model")),
        licence={} if licence.get("license") == UNKNOWN_LICENCE else licence,
        languages=_strings(said.get("language")),
        citations=MINILM_CITATIONS if name == MINILM else tuple(map(str.strip, cited)),
    )


def merged(origins: Sequence[Origin]) -> Origin:
    """Merge the origins of several encoders. The licence is kept only if all encoders have the same licence."""
    first, *others = origins
    return Origin(
        base_models=tuple(dict.fromkeys(one for each in origins for one in each.base_models)),
        licence=first.licence if all(each.licence == first.licence for each in others) else {},
        languages=tuple(dict.fromkeys(one for each in origins for one in each.languages)),
        citations=tuple(dict.fromkeys(one for each in origins for one in each.citations)),
    )


def _front_matter(card: Path) -> Mapping[str, Any]:
    try:
        return metadata_load(card) or {}
    except (ValueError, yaml.YAMLError) as error:  # An invalid card must not prevent the use of an encoder.
        log.warning("%s: %s; its licence and languages are treated as unknown", card, str(error).splitlines()[0])
        return {}


def _strings(value: object) -> tuple[str, ...]:
    """Return the texts in a value of a card's metadata. The value may be a single text or a list.

    Values of other types, such as YAML's `no`, are ignored.
    """
    values = value if isinstance(value, list) else [value]
    return tuple(one for one in values if isinstance(one, str))
