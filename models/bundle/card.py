"""The model card: a description of a bundle, its training and its scores, for readers and for the Hugging Face hub.

All facts come from the manifest, or from the model card of the encoder's source (`models.bundle.origin`). Export writes
the card. When an encoder is promoted to the served default, the card is written again with all known scores.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from models.bundle.bundle import CROSS_ENCODER, Manifest
from models.bundle.origin import UNKNOWN_LICENCE, Origin
from models.bundle.prompts import DOCUMENT, QUERY, prompt_for

READABLE = "config_sentence_transformers.json"
"""Name of the file that allows sentence-transformers to open the bundle."""
ADAPTER_FILE = "adapter_config.json"
"""Name of the file that marks an adapter. A folder without this file contains a whole encoder."""
PARITY = "onnx_parity"
BULKY = ("curve", "environment")
"""Keys of a run's record whose values are too long for a card."""


ENCODER_ABOUT = (
    "A sentence encoder. It maps a text to a unit vector of {dim} numbers. Texts with similar meaning have a high "
    "cosine."
)
PAIR_ABOUT = (
    "A cross-encoder. It reads a query and a text together, and returns one score. A higher score means that the text "
    "is more relevant. The sigmoid of the score is between 0 and 1."
)


class Measure(NamedTuple):
    """Description of a score in the manifest, for the hub's metadata and for readers."""

    task: str
    data: str
    split: str
    metric: str
    says: str


def _sts(data: str) -> Measure:
    return Measure("semantic-similarity", f"{data} (SentEval)", "test", "spearman_cosine", "Spearman × 100, all pairs")


def _transfer(data: str) -> Measure:
    return Measure("text-classification", f"{data} (SentEval)", "test", "accuracy", "accuracy of a linear probe, %")


MEASURES = {
    **{name: _sts(name) for name in ("STS12", "STS13", "STS14", "STS15", "STS16")},
    "STSB": _sts("STS-B"),
    "SICKR": _sts("SICK-R"),
    "STS mean": _sts("Mean of the seven STS tasks"),
    "stsb_dev_spearman": _sts("STS-B")._replace(
        split="dev", says="Spearman × 100; this score selects the weights of a run"
    ),
    **{name: _transfer(name) for name in ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")},
}
"""Descriptions of scores, by the names of the scores in a manifest."""
NDCG10 = "nDCG@10"
"""Suffix of a retrieval score's name in a manifest.

The name of the collection precedes it, as in `name nDCG@10` or `name:split nDCG@10`.
"""
COLLECTIONS = {"scifact": "SciFact (BEIR)"}
"""Public names of retrieval collections. Other collections keep their own names."""


def measure(name: str) -> Measure | None:
    """Return the description of the score called `name`, or None for names that this project does not use."""
    part, _, metric = name.rpartition(" ")
    if part and metric == NDCG10:
        collection, _, split = part.partition(":")
        data = COLLECTIONS.get(collection, collection)
        return Measure("information-retrieval", data, split or "test", "ndcg_at_10", f"{NDCG10} × 100")
    return MEASURES.get(name)


def text(manifest: Manifest, origin: Origin, citations: Sequence[str] = ()) -> str:
    """Return the model card as Markdown, with YAML metadata for the hub at the beginning.

    `citations` are the BibTeX entries of the training method.
    """
    sections = (
        _about(manifest),
        _use(manifest, origin),
        _scores(manifest.scores or {}),
        _training(manifest),
        _limits(manifest, origin),
        _citations([*citations, *origin.citations]),
        _licence(origin),
    )
    return f"---\n{_metadata(manifest, origin).to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n"


def _metadata(manifest: Manifest, origin: Origin) -> ModelCardData:
    of_origin: dict[str, Any] = {
        "base_model": list(origin.base_models) or None,
        "language": list(origin.languages) or None,
        "license": origin.licence.get("license", UNKNOWN_LICENCE),
        "license_name": origin.licence.get("license_name"),
        "license_link": origin.licence.get("license_link"),
    }
    if manifest.kind == CROSS_ENCODER:
        return ModelCardData(
            **of_origin,
            library_name="sentence-transformers",
            pipeline_tag="text-ranking",
            tags=["sentence-transformers", "cross-encoder", "onnx", "isosphere"],
        )
    readable, adapter = READABLE in manifest.files, ADAPTER_FILE in manifest.files
    tasks = ["sentence-similarity", "feature-extraction"]
    readers = ["sentence-transformers"] if readable else []
    results = [_result(known, score) for name, score in (manifest.scores or {}).items() if (known := measure(name))]
    return ModelCardData(
        model_name=manifest.name if results else None,  # The hub's model-index requires this value.
        **of_origin,
        library_name="peft" if adapter else "sentence-transformers" if readable else "onnx",
        pipeline_tag=tasks[0] if readable or adapter else tasks[1],
        tags=[*readers, *tasks, "lora" if adapter else "onnx", "isosphere", *filter(None, [manifest.objective])],
        eval_results=results or None,
    )


def _result(measure: Measure, score: float) -> EvalResult:
    return EvalResult(
        task_type=measure.task,
        dataset_type=measure.data.lower().replace(" ", "-").replace("(", "").replace(")", ""),
        dataset_name=measure.data,
        dataset_split=measure.split,
        metric_type=measure.metric,
        metric_name=measure.says,
        metric_value=round(score, 2),
    )


def _about(manifest: Manifest) -> str:
    transformed = f", then a {manifest.transform['kind']} transform" if manifest.transform else ""
    prompts = "".join(f"\n- `{name}`: `{prompt}`" for name, prompt in manifest.prompts.items())
    about = _recipe(manifest).get("about") or (manifest.run or {}).get("about")
    merged = manifest.adapter
    weights = (
        f"| adapter | `{merged['sha256'][:12]}…`, for `{merged['base']}` with the weights "
        f"`{merged['base_sha256'][:12]}…` |\n"
        if merged
        else ""
    )
    if merged and isinstance(merged.get("layers"), list):
        weights += f"| layers | {', '.join(map(str, merged['layers']))} of `{merged['base']}`, counted from 0 |\n"
    return (
        f"# {manifest.name}\n\n"
        + (f"{about}\n\n" if about else "")
        + (PAIR_ABOUT if manifest.kind == CROSS_ENCODER else ENCODER_ABOUT.format(dim=manifest.dim))
        + "\n\n"
        f"| | |\n|---|---|\n| backbone | `{manifest.backbone}` |\n{weights}"
        f"| pooling | `{manifest.pooling}`{transformed} |\n"
        f"| dimensions | {manifest.dim} |\n| maximum tokens of a text | {manifest.max_length} |\n"
        f"| fingerprint | `{manifest.fingerprint}` |" + (f"\n\nPrompts, by name:\n{prompts}" if prompts else "")
    )


def _scores(scores: Mapping[str, float]) -> str:
    known = {name: m for name in [*MEASURES, *scores] if name in scores and (m := measure(name))}
    rows = [f"| {m.data}, {m.split} | {m.says} | {scores[name]:.2f} |" for name, m in known.items()]
    others = {name: score for name, score in scores.items() if name not in known and name != PARITY}
    rows += [f"| `{name}` | as recorded by the training | {score:.4g} |" for name, score in others.items()]
    table = "\n".join(["| data | measure | score |", "|---|---|---|", *rows])
    parity = (
        f"ONNX Runtime's coordinates differ from torch's by at most {scores[PARITY]:.0e}." if PARITY in scores else ""
    )
    more = (
        "If the folder has a `report.json`, that report describes how the scores were measured, and has further scores."
    )
    parts = ["## Scores", table if rows else "No scores are known.", parity, more]
    return "\n\n".join(filter(None, parts))


def _training(manifest: Manifest) -> str:
    run = manifest.run or {}
    config = run.get("config")
    known = _trained(manifest.objective, run)
    if not run:
        parts = [known or "No training is recorded. The weights are those of the source."]
    elif isinstance(config, dict):
        repeated = "To repeat the training, save this as `config.json` and run `isosphere train --config config.json`"
        parts = [known, repeated, _json(config)]
    else:
        record = {key: value for key, value in run.items() if key not in BULKY}
        parts = [known, _mixed(run), _rebuilt(manifest), _postprocess(run), _folded("Record", record)]
    return "\n\n".join(["## Training", *filter(None, parts)])


def _trained(objective: str | None, run: Mapping[str, Any]) -> str:
    """Return a paragraph about the training run, with all known facts."""
    config, teacher, corpus = (run.get(part) for part in ("config", "teacher", "corpus"))
    said = [
        f"Objective: `{objective}`." if objective else "",
        _teacher(teacher) if isinstance(teacher, dict) else "",
        _corpus(corpus) if isinstance(corpus, dict) else "",
        f"The weights are those of step {run['best_step']}." if "best_step" in run else "",
        f"Seed {config['seed']}." if isinstance(config, dict) and "seed" in config else "",
    ]
    return " ".join(filter(None, said))


def _teacher(teacher: Mapping[str, Any]) -> str:
    said = [f"of `{teacher['backbone']}`"] if teacher.get("backbone") else []
    said += [f"fingerprint `{teacher['fingerprint']}`"] if teacher.get("fingerprint") else []
    said += [f"licence `{teacher['licence']}`"] if teacher.get("licence") else []
    return f"Teacher: `{teacher.get('name')}`" + (f" ({', '.join(said)})." if said else ".")


def _mixed(run: Mapping[str, Any]) -> str:
    """Return a table of the encoders whose weights were averaged, or an empty text if no weights were averaged."""
    match run:
        case {"ingredients": [*ingredients]}:
            rows = [row for each in ingredients if (row := _ingredient(each))]
            left = len(ingredients) - len(rows)
            others = f" Encoders left out: {left}." if left else ""
            table = "\n".join(["| share of the weights | encoder | training |", "|---|---|---|", *rows])
            averaged = "The weights are an average." if len(rows) > 1 else "The weights are those of one run."
            return f"{averaged}{others}\n\n{table}"
    return ""


def _ingredient(ingredient: Any) -> str:
    match ingredient:
        case {"share": int() | float() as share, "source": str(source), **record} if share:
            run, objective = record.get("run"), record.get("objective")
            trained = _trained(str(objective) if objective else None, run if isinstance(run, dict) else {})
            return f"| {share:.3g} | `{source}` | {trained or 'not recorded'} |"
    return ""


def _rebuilt(manifest: Manifest) -> str:
    if file := _recipe(manifest).get("file"):
        command = shlex.join(["isosphere", "rebuild", file])
        return f"To repeat the training, run `{command} --data SENTEVAL --corpus FILE`."
    return ""


def _recipe(manifest: Manifest) -> Mapping[str, Any]:
    """Return facts about the recipe from which `isosphere rebuild` made the encoder, such as the recipe's `file`.

    The result is empty if the encoder was not made in this way.
    """
    recipe = (manifest.run or {}).get("recipe")
    return recipe if isinstance(recipe, dict) else {}


def _corpus(corpus: Mapping[str, Any]) -> str:
    named = f" `{corpus['name']}`" if "name" in corpus else ""
    digest = f" (digest `{corpus['digest']}`)" if "digest" in corpus else ""
    count = f" of {corpus['sentences']:,} sentences" if isinstance(corpus.get("sentences"), int) else ""
    return f"Corpus{named}{count}{digest}."


def _postprocess(run: Mapping[str, Any]) -> str:
    """Return a sentence with the command that fitted the encoder's transform.

    The sentence is empty if `run` lacks a value that the command needs. The paths of the corpus are omitted, because
    another section of the card names the corpus.
    """
    match run:
        case {"postprocess": str(kind), "source": str(source), "params": dict(params), "seed": int(seed)}:
            settings = [word for name, value in params.items() for word in ("--set", f"{name}={value}")]
            words = ["isosphere", "postprocess", kind, source, "--out", "DIR"]
            for name in ("pooling", "max_length"):  # Earlier records lack both fields.
                words += [f"--{name.replace('_', '-')}", str(run[name])] if name in run else []
            fitted = f"To fit the transform again, run `{shlex.join([*words, '--seed', str(seed), *settings])}`"
            return f"{fitted}. Add `--corpus FILES` if the corpus was not the default one."
    return ""


def _json(content: Mapping[str, Any]) -> str:
    return f"```json\n{json.dumps(content, ensure_ascii=False, indent=2)}\n```"


def _folded(title: str, content: Mapping[str, Any]) -> str:
    return f"<details><summary>{title}</summary>\n\n{_json(content)}\n\n</details>"


def _use(manifest: Manifest, origin: Origin) -> str:
    if ADAPTER_FILE in manifest.files:
        return _use_adapter(manifest, origin)
    if manifest.kind == CROSS_ENCODER:
        return _use_cross_encoder(manifest)
    roles = any(prompt_for(manifest.prompts, names) for names in (QUERY, DOCUMENT))
    encoded = (
        'documents = encoder.encode_document(["A man plays the guitar.", "Somebody makes music."])\n'
        'query = encoder.encode_query("Who makes music?")'
        if roles
        else 'vectors = encoder.encode(["A man plays the guitar.", "Somebody makes music."])'
    )
    opened = (
        "With sentence-transformers, where `FOLDER` is this folder or its id on the hub:\n\n"
        "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        f'encoder = SentenceTransformer("FOLDER")\n{encoded}\n```'
        if READABLE in manifest.files
        else "sentence-transformers does not support this transform and can't open the folder. The server below can."
    )
    return (
        f"## Use\n\n{opened}\n\nWith Isosphere's server, which needs no torch:\n\n"
        f"```sh\nisosphere pull ORG/NAME --out {shlex.quote(f'artifacts/{manifest.name}')}  "
        f"# from the hub, every hash checked\n"
        f"isosphere serve --bundle {shlex.quote(f'artifacts/{manifest.name}')}\n"
        "curl -s http://127.0.0.1:8080/embed -H 'content-type: application/json' \\\n"
        """     -d '{"inputs": ["A man plays the guitar.", "Somebody makes music."]}'\n```"""
        + (
            "\n\nCorpora add the prompts automatically. `/embed` adds the prompt that `prompt_name` selects."
            if roles
            else ""
        )
    )


def _use_cross_encoder(manifest: Manifest) -> str:
    folder = shlex.quote(f"artifacts/{manifest.name}")
    body = json.dumps({"model": manifest.name, "query": "Who makes music?", "texts": ["A man plays.", "It rains."]})
    return (
        "## Use\n\nWith sentence-transformers, where `FOLDER` is this folder or its id on the hub:\n\n"
        "```python\nfrom sentence_transformers import CrossEncoder\n\n"
        'scores = CrossEncoder("FOLDER").predict([("Who makes music?", "A man plays the guitar.")])\n```\n\n'
        "With Isosphere's server, which needs no torch. A server needs an encoder, too, which comes first:\n\n"
        f"```sh\nisosphere pull ORG/NAME --out {folder}  # from the hub, every hash checked\n"
        f"isosphere serve --bundle minilm+default --bundle {folder}\n"
        "curl -s http://127.0.0.1:8080/rerank -H 'content-type: application/json' \\\n"
        f"     -d {shlex.quote(body)}\n```"
    )


def _use_adapter(manifest: Manifest, origin: Origin) -> str:
    base = next(iter(origin.base_models), manifest.backbone)
    folder = shlex.quote(f"artifacts/{manifest.name}")
    transform = (
        f" after the {manifest.transform['kind']} transform, which peft does not support" if manifest.transform else ""
    )
    return (
        "## Use\n\nThe folder contains a low-rank adapter, which needs the weights of its base. Isosphere merges "
        "the two. "
        "`FOLDER` is this folder:\n\n"
        f"```sh\nisosphere export FOLDER --out {folder}\nisosphere serve --bundle {folder}\n```\n\n"
        "With `peft`, `FOLDER` is this folder or its id on the hub:\n\n"
        "```python\nfrom peft import PeftModel\nfrom transformers import AutoModel\n\n"
        f'base = AutoModel.from_pretrained("{base}")\n'
        'encoder = PeftModel.from_pretrained(base, "FOLDER").merge_and_unload()\n```\n\n'
        f"The vector of a text is the {manifest.pooling} pooling of the last hidden states{transform}, divided by its "
        "L2 norm."
    )


def _limits(manifest: Manifest, origin: Origin) -> str:
    languages = (
        f"The model card of the source weights names these languages: {', '.join(origin.languages)}. The quality in "
        "other languages is unknown."
        if origin.languages
        else "The model card of the source weights names no language."
    )
    own = "".join(f"- {limit}\n" for limit in _recipe(manifest).get("limits", ()))
    return (
        f"## Limits\n\n{own}- {languages}\n"
        f"- A text is truncated after {manifest.max_length} tokens, including special tokens.\n"
        "- Texts that differ from the training texts in subject or length may have lower scores than those above.\n"
        "- The vectors probably contain the prejudices of the training texts. This was not measured.\n"
        "- A cosine is not a probability. Choose thresholds on your own data."
    )


def _citations(entries: Sequence[str]) -> str:
    blocks = [f"```bibtex\n{entry.strip()}\n```" for entry in dict.fromkeys(entries)]
    return "\n\n".join(["## Citation", *(blocks or ["No citation is known."])])


def _licence(origin: Origin) -> str:
    if not origin.licence:
        return (
            "## Licence\n\nUnknown: the model cards of the source weights name no licence, or several that differ. "
            "Ask the authors before you redistribute this encoder."
        )
    named = " ".join(f"`{value}`" for value in origin.licence.values())
    return f"## Licence\n\n{named}: the licence of the source weights, according to their card."
