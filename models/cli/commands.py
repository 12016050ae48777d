"""Implementations of the commands of `python -m models`. `models.__main__` defines their options."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from models import cpus, remotes
from models.bundle import adapter, bundle, sources
from models.bundle.adapter import Adapter, AdapterError
from models.bundle.bundle import CROSS_ENCODER, ENCODER, BundleError
from models.bundle.card import NDCG10, READABLE
from models.bundle.prompts import DOCUMENT, QUERY, nonempty, prompt_for
from models.cli.command_line import quieten
from models.errors import Refused, first_line
from models.export import destination
from models.remotes import transfer
from models.runtimes.base import Options
from models.runtimes.choice import Choice

if TYPE_CHECKING:
    from models.encoder.encoder import Encoder


def _prompts(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    names = [name for name, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"--prompt {twice} is given twice")
    return dict(given)


def _export(arguments: argparse.Namespace) -> None:
    if arguments.if_missing and (arguments.out / bundle.MANIFEST).exists():
        bundle.load(arguments.out)
        print(f"{arguments.out}: already exists, hashes verified")
        return
    destination.refuse_foreign(arguments.out)
    if arguments.exporter == "optimum":
        from models.export.exporters import require_optimum  # Imported late, because it loads torch.

        require_optimum()
    prompts = _prompts(arguments.prompt)
    options = None if arguments.no_measure else Options(threads=cpus.available())
    chosen: list[Choice] = []
    if sources.is_cross_encoder(arguments.source):
        _export_cross_encoder(arguments)
        return
    as_it_is = not (arguments.pooling or arguments.max_length or prompts or arguments.fp16)
    if as_it_is and arguments.exporter == "torch" and sources.manifest_without_torch(arguments.source):
        from models.export import assembly  # Imported late, because it loads onnx, which no other command needs.

        print(f"assembling {arguments.source}, without torch …", flush=True)
        name = arguments.name or arguments.out.name
        made = assembly.assemble(
            arguments.source, arguments.out, name=name, measure_with=options, on_choice=chosen.append
        )
        print(
            f"{arguments.out}: {made.manifest.dim} dimensions, {made.manifest.max_length} tokens, "
            f"{made.manifest.pooling} pooling, golden vectors verified"
        )
    else:
        _export_by_torch(arguments, prompts, options, chosen)
    for choice in chosen:
        print(f"fastest engine on this machine, which a server will use: {choice}")


def _export_cross_encoder(arguments: argparse.Namespace) -> None:
    given = {name: getattr(arguments, name) for name in ("pooling", "prompt", "fp16")}
    if wrong := next((name for name, value in given.items() if value), None):
        raise Refused(f"--{wrong}: {arguments.source} is a cross-encoder, which has no {wrong}")
    if arguments.exporter != "torch":
        raise Refused(f"--exporter {arguments.exporter}: cross-encoders are exported by torch")
    from models.encoder.cross_encoder import CrossEncoder  # Imported late, because it loads torch.
    from models.export import cross_encoder

    quieten()
    print(f"loading the cross-encoder {arguments.source} …", flush=True)
    said = sources.manifest_of(arguments.source)
    longest = arguments.max_length or (said.max_length if said else None)
    loaded = CrossEncoder.load(arguments.source, max_length=longest)
    print("exporting to ONNX and comparing with torch …", flush=True)
    name = arguments.name or (said.name if said and sources.local_bundle(arguments.source) else arguments.out.name)
    backbone = said.backbone if said else arguments.source
    made = cross_encoder.export(loaded, arguments.out, name=name, backbone=backbone, run=said.run if said else None)
    parity = (made.manifest.scores or {})["onnx_parity"]
    print(f"{arguments.out}: a cross-encoder of {made.manifest.max_length} tokens, parity {parity:.1e}")


def _export_by_torch(
    arguments: argparse.Namespace, prompts: dict[str, str], options: Options | None, chosen: list[Choice]
) -> None:
    sources.resolve(arguments.source)  # Check the name before torch is loaded, so that a wrong name fails at once.
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
            print(f"searches add {prompt!r} before {role}")
    transformed = f", {encoder.transform.kind} transform" if encoder.transform else ""
    size = f"{encoder.dim} dimensions, {encoder.max_length} tokens"
    print(f"{arguments.out}: {size}, {encoder.pooling} pooling{transformed}, parity {parity:.1e}")


def _origin(arguments: argparse.Namespace, encoder: Encoder) -> dict[str, Any]:
    """Return arguments for `export` that describe the origin of the encoder.

    If the source has a manifest, the arguments repeat its facts, including its scores. If the pooling or the maximum
    length of `encoder` differs from the manifest, the scores are left out. If only the prompts differ, only the
    retrieval scores are left out.
    """
    said = sources.manifest_of(arguments.source)
    if said is None:
        return {"name": arguments.name or arguments.out.name, "backbone": arguments.source}
    before = sources.local_bundle(arguments.source)
    same = (encoder.pooling, encoder.max_length) == (said.pooling, said.max_length)
    kept = {key: getattr(said, key) for key in ("backbone", "objective", "run", "adapter")}
    searched = nonempty(encoder.prompts) == nonempty(said.prompts)
    scores = {name: score for name, score in (said.scores or {}).items() if searched or not name.endswith(NDCG10)}
    # Scores are dropped if pooling or length differ, because they no longer apply.
    judged = {"scores": scores, "previous": before} if same else {}
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
        layers=arguments.layers,
        about=arguments.about,
        data=arguments.data,
    )
    print(
        f"{made.folder}: rank {arguments.rank}, {made.bytes / 1e6:.2f} MB; cosine to {arguments.source}: "
        f"mean {made.mean_cosine:.5f}, minimum {made.least_cosine:.5f}"
    )
    if made.stsb_dev:
        before, after = made.stsb_dev
        print(f"STS-B dev: {after:.2f}, and {before:.2f} for {arguments.source}")


def _inspect(arguments: argparse.Namespace) -> None:
    facts = asdict(_manifest(transfer.opened(arguments.folder)))
    facts["golden"] = [golden["text"] for golden in facts["golden"]]
    print(json.dumps(facts, ensure_ascii=False, indent=2))
    if facts["kind"] == ENCODER and not facts["files"].keys() & {READABLE, adapter.CONFIG}:
        print("note: sentence-transformers does not support this transform and can't open the bundle", file=sys.stderr)


def _verify(arguments: argparse.Namespace) -> None:
    from models.runtimes.graph import GOLDEN_DIFFERENCE, golden_cosine, golden_difference

    folder = arguments.folder
    if isinstance(opened := transfer.opened(folder), Adapter):
        print(f"{folder}: {len(_manifest(opened).files)} files verified; `export` compares the golden vectors")
        return
    _ = opened.int8_limit, opened.matryoshka  # Servers read these settings, too.
    cross = opened.manifest.kind == CROSS_ENCODER
    try:
        worst = golden_difference(opened) if cross else golden_cosine(opened)
    except Refused:
        raise
    except Exception as error:  # ONNX Runtime's errors for a damaged graph have no common class.
        raise BundleError(f"{opened.onnx}: {first_line(error)}") from error
    if cross:
        if not worst <= GOLDEN_DIFFERENCE:
            raise BundleError(
                f"{opened.onnx}: differs from a golden score by {worst:.6f}, more than {GOLDEN_DIFFERENCE}"
            )
        print(f"{folder}: {len(opened.manifest.files)} files verified, golden scores within {worst:.1e}")
        return
    if not worst >= bundle.GOLDEN_COSINE:
        raise BundleError(f"{opened.onnx}: cosine {worst:.6f} to a golden vector, below {bundle.GOLDEN_COSINE}")
    print(f"{folder}: {len(opened.manifest.files)} files verified, golden cosine {worst:.6f}")


def _manifest(opened: transfer.Package) -> bundle.Manifest:
    """Return the manifest of a package.

    Raises:
        AdapterError: the package is an adapter without adapter.json.
    """
    if opened.manifest is None:
        raise AdapterError(f"{opened.folder}: has no {adapter.MANIFEST}, so there is no manifest to read")
    return opened.manifest


def _publish(arguments: argparse.Namespace) -> None:
    remote = remotes.open_remote(
        arguments.target, revision=arguments.revision, private=arguments.private, message=arguments.message
    )
    opened = transfer.opened(sources.shipped_folder(str(arguments.folder)) or arguments.folder)
    print(f"publishing {arguments.folder} to {remote} …", flush=True)
    sent = transfer.publish(opened, remote, replace=arguments.replace)
    print(
        f"{remote}: {sent} files sent, every hash compared"
        if sent
        else f"{remote}: already up to date, hashes compared"
    )


def _pull(arguments: argparse.Namespace) -> None:
    opened, fetched = transfer.pull(remotes.open_remote(arguments.source), arguments.out, replace=arguments.replace)
    how = f"{fetched} files fetched" if fetched else "already there"
    manifest = _manifest(opened)
    print(f"{arguments.out}: {manifest.name}, {how}, hashes verified; fingerprint {manifest.fingerprint}")


COMMANDS = {
    "export": _export,
    "adapter": _extract,
    "publish": _publish,
    "pull": _pull,
    "inspect": _inspect,
    "verify": _verify,
}
