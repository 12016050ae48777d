"""Table of all commands of the project. The help of each program takes its descriptions from this table.

The table is in `models`, which all other packages may import. So `isosphere` and the commands `python -m …` print the
same texts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

EXIT_STATUS = "exit status: 0 success; 1 the work failed; 2 an input or option can't be used; 130 Ctrl-C"


class Command(NamedTuple):
    """A subcommand: its summary, an example of its arguments, and the program that runs it."""

    summary: str
    example: str
    program: str
    """Package whose `__main__.main` runs the command."""
    verb: str | None = None
    """Name of the command in the program.

    None means the name in the table, and the empty string means that the program has no subcommands.
    """


GROUPS: dict[str, dict[str, Command]] = {
    "Serve and search": {
        "serve": Command("serve embeddings and search over HTTP", "serve --bundle minilm+default", "serving", ""),
        "embed": Command(
            "write the vectors of texts to a file", "embed notes.jsonl --out notes.parquet", "isosphere.embed", ""
        ),
        "mcp": Command(
            "give an assistant tools to search a running server",
            "mcp --url http://127.0.0.1:8080",
            "isosphere.mcp_server",
            "",
        ),
        "ingest": Command(
            "add documents to a corpus, with or without a server", "ingest notes.jsonl --corpus docs", "serving"
        ),
        "search": Command("search a corpus without a server", 'search "how to install" --corpus docs', "serving"),
        "export-corpus": Command(
            "write a corpus as JSON lines", "export-corpus --corpus docs --out docs.jsonl", "serving", "export"
        ),
        "verify-corpus": Command("check every byte of a corpus", "verify-corpus --corpus docs", "serving", "verify"),
        "copy-corpus": Command(
            "copy a corpus to another folder or to Milvus", "copy-corpus var#docs milvus://db:19530", "serving", "copy"
        ),
        "keys": Command("manage the file of API keys", "keys add app --scopes read", "serving"),
        "openapi": Command("print the HTTP API as an OpenAPI document", "openapi > openapi.json", "serving"),
    },
    "Train and evaluate": {
        "train": Command("train an encoder on plain text", "train simcse --corpus texts.txt", "training"),
        "adapt": Command("adapt an encoder to your own documents", "adapt documents.jsonl", "training"),
        "pretrain": Command("train a small language model to start from", "pretrain --corpus texts.txt", "training"),
        "evaluate": Command(
            "score an encoder on STS, transfer and retrieval", "evaluate minilm --data DIR", "training"
        ),
        "study": Command("run and compare many trainings", "study run dclr/table-2 --data DIR", "training"),
        "postprocess": Command(
            "fit a transform to an encoder's vectors", "postprocess whitening minilm --out DIR", "training"
        ),
        "soup": Command("average the weights of encoders", "soup runs/a runs/b --out artifacts/soup", "training"),
        "rebuild": Command(
            "retrain a shipped encoder from its recipe",
            "rebuild studies/recipes/default.toml --data DIR",
            "training",
        ),
        "finish": Command("export the best weights of a stopped run", "finish runs/simcse", "training"),
        "replay": Command("repeat the step at which a run diverged", "replay runs/simcse", "training"),
        "data": Command(
            "download the papers' data, or make a corpus", "data sentences notes.jsonl --out corpus.txt", "training"
        ),
        "list": Command("list objectives, presets, ablations and tasks", "list", "training"),
    },
    "Encoders": {
        "export": Command(
            "write an encoder as a bundle with an ONNX graph", "export minilm --out artifacts/minilm", "models"
        ),
        "adapter": Command(
            "extract a low-rank adapter from tuned weights",
            "adapter extract artifacts/tuned --rank 8 --out adapters/tuned",
            "models",
        ),
        "inspect": Command("print the manifest of a bundle or an adapter", "inspect artifacts/default", "models"),
        "verify": Command("check a bundle's hashes and vectors", "verify artifacts/default", "models"),
        "publish": Command(
            "upload a bundle or an adapter to a hub or URL", "publish artifacts/default org/name", "models"
        ),
        "pull": Command("download and verify a bundle or an adapter", "pull org/name --out artifacts/name", "models"),
        "promote": Command(
            "serve a bundle if it is not worse than the served one", "promote artifacts/new", "training"
        ),
        "rollback": Command("serve the previously served bundle", "rollback", "training"),
    },
    "Shell": {
        "completion": Command(
            "print the script that completes this command in a shell", "completion bash", "isosphere.completion", ""
        ),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def about(name: str) -> dict[str, Any]:
    """Return the table's entry for the command `name` as arguments for argparse's `add_parser`."""
    return described(*COMMANDS[name][:2])


def described(summary: str, example: str) -> dict[str, Any]:
    """Return `summary` and `example` as arguments for argparse's `add_parser`."""
    return {"help": summary, **texts(summary, example)}


def texts(summary: str, example: str) -> dict[str, Any]:
    """Return `summary` and `example` as a parser's arguments `description` and `epilog`."""
    return {
        "description": f"{summary[0].upper()}{summary[1:]}.",
        "epilog": f"example: isosphere {example}\n\n{EXIT_STATUS}",
    }
