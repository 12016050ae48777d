"""Commands of `python -m models`: export encoders to bundles and adapters, and exchange them with the hub."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import command_line, cpus, remotes
from models.bundle import adapter, bundle, sources
from models.bundle.adapter import Adapter, AdapterError
from models.bundle.bundle import BundleError
from models.bundle.card import NDCG10
from models.bundle.disk import error_line_and_status
from models.bundle.prompts import DOCUMENT, QUERY, nonempty, prompt_for
from models.command_line import Parser, quieten
from models.errors import Failed, Refused, not_installed
from models.export import destination
from models.export.exporters import require_optimum
from models.remotes import transfer
from models.runtimes.base import Options
from models.runtimes.choice import Choice

if TYPE_CHECKING:
    from models.encoder.encoder import Encoder

ENCODER = f"minilm, {', '.join(sources.shipped())}, or the folder or hub id of an encoder or adapter"
PLACE = "hf://org/name or org/name on the hub, a URL that fsspec supports (s3://bucket/name), or a folder"


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit codes: 0 for success, 1 for a failure, 2 for bad input. Errors are one line."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.command(arguments)
        command_line.flush()
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ValueError as error:  # The error is `Refused` or an unknown pooling, which the user can correct.
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: {not_installed(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        if command_line.has_gone(error):
            return command_line.GONE
        line, code = error_line_and_status(error)
        print(f"error: {line}", file=sys.stderr)
        return code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="isosphere", description="Export encoders as bundles or adapters, and exchange them with the hub."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    export = verbs.add_parser("export", help="write an encoder as a bundle: weights, tokenizer, ONNX graph, manifest")
    export.add_argument("source", help=f"encoder to export: {ENCODER}, or a bundle")
    export.add_argument("--out", type=Path, required=True, help="folder of the bundle")
    export.add_argument("--name", help="name of the model in the server (default: the name of the folder)")
    export.add_argument(
        "--pooling",
        help="pooling: cls, mean, max, first_last, …, or several joined by + (default: the source's pooling)",
    )
    export.add_argument(
        "--max-length", type=int, help="maximum tokens of a text (default: the source's maximum length)"
    )
    export.add_argument(
        "--prompt",
        action="append",
        type=_prompt,
        default=[],
        metavar="NAME=TEXT",
        help="prompt that requests select by its name; searches use the prompts named query and document; may be "
        "repeated (default: the source's prompts)",
    )
    export.add_argument(
        "--exporter",
        choices=("torch", "optimum"),
        default="torch",
        help="exporter of the graph; optimum needs a separate environment, created by `make optimum` (default: torch)",
    )
    export.add_argument(
        "--fp16",
        action="store_true",
        help="also write a float16 graph with fused attention, which is the fastest on CUDA",
    )
    export.add_argument("--if-missing", action="store_true", help="do nothing if the folder already has a valid bundle")
    export.add_argument("--no-measure", action="store_true", help="do not compare the engines of this machine")
    adapters = verbs.add_parser("adapter", help="low-rank adapters, which store an encoder in a hundredth of the bytes")
    extract = adapters.add_subparsers(dest="action", required=True).add_parser(
        "extract",
        help="approximate the difference of a tuned encoder to its base by a low-rank adapter, and report the loss",
    )
    extract.add_argument("source", help=f"tuned encoder: {ENCODER}, or a bundle")
    extract.add_argument(
        "--base", default=sources.MINILM, help=f"encoder that it was tuned from (default: {sources.MINILM})"
    )
    extract.add_argument("--rank", type=int, required=True, help="rank of each linear layer's update, usually 4 to 32")
    extract.add_argument(
        "--dtype",
        choices=("float16", "float8_e4m3fn"),
        default="float16",
        help="number type of the factors; float8_e4m3fn stores twice the rank in the same bytes (default: float16)",
    )
    extract.add_argument("--out", type=Path, required=True, help="folder of the adapter, which also names the adapter")
    extract.add_argument("--no-biases", action="store_true", help="do not change the biases of the base")
    extract.add_argument("--about", help="sentence for the model card")
    extract.add_argument(
        "--data", type=Path, help="folder of SentEval's data, to also compare both encoders on STS-B dev"
    )
    publish = verbs.add_parser("publish", help="upload a bundle or an adapter to the hub or a URL, and verify it")
    publish.add_argument("folder", type=Path, help="folder of a bundle or an adapter, or minilm+NAME")
    publish.add_argument("target", help=PLACE)
    publish.add_argument(
        "--private", action="store_true", help="create the repository as private, if it does not exist"
    )
    publish.add_argument("--revision", help="branch of the repository, which is created if it does not exist")
    publish.add_argument("--message", help="commit message")
    pull = verbs.add_parser(
        "pull", help="download a bundle or an adapter, verify every hash, and install it only if it is complete"
    )
    pull.add_argument("source", help=f"{PLACE}; a name on the hub may end in @revision")
    pull.add_argument("--out", type=Path, required=True, help="folder of the bundle")
    for verb in (publish, pull):
        verb.add_argument("--replace", action="store_true", help="replace another bundle")
    inspect = verbs.add_parser("inspect", help="print the manifest of a bundle or an adapter, without golden vectors")
    verify = verbs.add_parser("verify", help="verify every hash, and for a bundle the golden vectors on ONNX Runtime")
    for verb in (inspect, verify):
        verb.add_argument("folder", type=Path)
    commands = {export: _export, extract: _extract, publish: _publish, pull: _pull, inspect: _inspect, verify: _verify}
    for verb, command in commands.items():
        verb.set_defaults(command=command)
    return parser


def _prompt(given: str) -> tuple[str, str]:
    name, equals, text = given.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{given!r} is not NAME=TEXT")
    return name, text


def _prompts(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    names = [name for name, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"--prompt {twice}: is given twice")
    return dict(given)


def _export(arguments: argparse.Namespace) -> None:
    if arguments.if_missing and (arguments.out / bundle.MANIFEST).exists():
        bundle.load(arguments.out)
        print(f"{arguments.out}: already there, hashes verified")
        return
    destination.refuse_foreign(arguments.out)
    if arguments.exporter == "optimum":
        require_optimum()
    prompts = _prompts(arguments.prompt)
    options = None if arguments.no_measure else Options(threads=cpus.available())
    chosen: list[Choice] = []
    as_it_is = not (arguments.pooling or arguments.max_length or prompts or arguments.fp16)
    if as_it_is and arguments.exporter == "torch" and sources.manifest_without_torch(arguments.source):
        from models.export import assembly  # imports onnx, which no other verb needs

        print(f"assembling {arguments.source}, without torch …", flush=True)
        name = arguments.name or arguments.out.name
        made = assembly.assemble(
            arguments.source, arguments.out, name=name, measure_with=options, on_choice=chosen.append
        )
        print(
            f"{arguments.out}: {made.manifest.dim} dimensions, {made.manifest.pooling} pooling, golden vectors verified"
        )
    else:
        _export_by_torch(arguments, prompts, options, chosen)
    for choice in chosen:
        print(f"fastest engine here, which a server will take: {choice}")


def _export_by_torch(
    arguments: argparse.Namespace, prompts: dict[str, str], options: Options | None, chosen: list[Choice]
) -> None:
    sources.resolve(arguments.source)  # Before torch is loaded, so that a wrong name fails at once.
    from models.encoder.encoder import Encoder
    from models.export.export import export

    quieten()
    print(f"loading {arguments.source} …", flush=True)
    encoder = Encoder.load(
        arguments.source,
        pooling=arguments.pooling,
        max_length=arguments.max_length,
        prompts=prompts,
    )
    print("exporting to ONNX and comparing with torch …", flush=True)
    made = export(
        encoder,
        arguments.out,
        **_origin(arguments, encoder),
        exporter=arguments.exporter,
        fp16_graph=arguments.fp16,
        measure_with=options,
        on_choice=chosen.append,
    )
    parity = (made.manifest.scores or {})["onnx_parity"]
    before = {"queries": prompt_for(encoder.prompts, QUERY), "documents": prompt_for(encoder.prompts, DOCUMENT)}
    for role, prompt in before.items():
        if prompt:
            print(f"a search puts {prompt!r} before {role}")
    transformed = f", {encoder.transform.kind} transform" if encoder.transform else ""
    print(f"{arguments.out}: {encoder.dim} dimensions, {encoder.pooling} pooling{transformed}, parity {parity:.1e}")


def _origin(arguments: argparse.Namespace, encoder: Encoder) -> dict[str, Any]:
    """Return facts about the origin of the encoder, for its manifest.

    If a bundle is exported again, the facts from its manifest are kept.
    """
    said = sources.manifest_of(arguments.source)
    if said is None:
        return {"name": arguments.name or arguments.out.name, "backbone": arguments.source}
    before = sources.local_bundle(arguments.source)
    same = (encoder.pooling, encoder.max_length) == (said.pooling, said.max_length)
    kept = {key: getattr(said, key) for key in ("backbone", "objective", "run", "adapter")}
    searched = nonempty(encoder.prompts) == nonempty(said.prompts)
    scores = {name: score for name, score in (said.scores or {}).items() if searched or not name.endswith(NDCG10)}
    judged = {"scores": scores, "previous": before} if same else {}  # another pooling or length has other scores
    return {**kept, **judged, "name": arguments.name or (said.name if before else arguments.out.name)}


def _extract(arguments: argparse.Namespace) -> None:
    sources.resolve(arguments.source), sources.resolve(arguments.base)
    from models.export.extraction import extract

    quieten()
    made = extract(
        arguments.source,
        arguments.out,
        base=arguments.base,
        rank=arguments.rank,
        dtype=arguments.dtype,
        biases=not arguments.no_biases,
        about=arguments.about,
        data=arguments.data,
    )
    print(
        f"{made.folder}: rank {arguments.rank}, {made.bytes / 1e6:.2f} MB; cosine to {arguments.source}: "
        f"mean {made.mean_cosine:.5f}, least {made.least_cosine:.5f}"
    )
    if made.stsb_dev:
        before, after = made.stsb_dev
        print(f"STS-B dev: {after:.2f}, where {arguments.source} has {before:.2f}")


def _inspect(arguments: argparse.Namespace) -> None:
    facts = asdict(_manifest(transfer.opened(arguments.folder)))
    facts["golden"] = [golden["text"] for golden in facts["golden"]]
    print(json.dumps(facts, ensure_ascii=False, indent=2))
    if not facts["files"].keys() & {"1_Pooling/config.json", adapter.CONFIG}:
        print("note: sentence-transformers has no words for this transform and can't open the bundle", file=sys.stderr)


def _verify(arguments: argparse.Namespace) -> None:
    from models.runtimes.graph import golden_cosine

    folder = arguments.folder
    if isinstance(opened := transfer.opened(folder), Adapter):
        print(f"{folder}: {len(_manifest(opened).files)} files verified; `export` compares the golden vectors")
        return
    worst = golden_cosine(opened)
    if not worst >= bundle.GOLDEN_COSINE:
        raise BundleError(f"{opened.onnx}: cosine {worst:.6f} to a golden vector, below {bundle.GOLDEN_COSINE}")
    print(f"{folder}: {len(opened.manifest.files)} files verified, golden cosine {worst:.6f}")


def _manifest(opened: transfer.Package) -> bundle.Manifest:
    """Return the manifest of a package. Raise `AdapterError` if the package is an adapter without our adapter.json."""
    if opened.manifest is None:
        raise AdapterError(f"{opened.folder}: has no {adapter.MANIFEST}: nothing is recorded of it")
    return opened.manifest


def _publish(arguments: argparse.Namespace) -> None:
    remote = remotes.open_remote(
        arguments.target, revision=arguments.revision, private=arguments.private, message=arguments.message
    )
    opened = transfer.opened(sources.shipped_folder(str(arguments.folder)) or arguments.folder)
    print(f"publishing {arguments.folder} to {remote} …", flush=True)
    sent = transfer.publish(opened, remote, replace=arguments.replace)
    print(f"{remote}: {sent} files sent, every hash compared" if sent else f"{remote}: already there, hashes compared")


def _pull(arguments: argparse.Namespace) -> None:
    opened, fetched = transfer.pull(remotes.open_remote(arguments.source), arguments.out, replace=arguments.replace)
    how = f"{fetched} files fetched" if fetched else "already there"
    manifest = _manifest(opened)
    print(f"{arguments.out}: {manifest.name}, {how}, hashes verified; fingerprint {manifest.fingerprint}")


if __name__ == "__main__":
    sys.exit(main())
