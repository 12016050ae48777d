"""Command-line options of `python -m serving`.

The server is imported only when a command runs, so `--help` is fast.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from models.cli.command_line import Parser
from models.cli.table import COMMANDS, described, texts
from serving.errors import ServiceError

if TYPE_CHECKING:
    from serving.corpora.filters import Filter

T = TypeVar("T")
CORPUS_VERBS = ("ingest", "search", "export", "verify", "copy")
CALLED = {"export": "export-corpus", "verify": "verify-corpus", "copy": "copy-corpus"}
"""Commands whose name in `isosphere` differs from their name in this package. In `isosphere`, `export` and `verify` are
commands for encoders."""
FORMATS = ("json", "ndjson", "csv", "text", "parquet", "arrow", "markdown", "html", "pdf", "docx")
MAX_HITS = 1000
KEYS_FILE = "ISOSPHERE_API_KEYS_FILE"
KEY_LIMITS = {
    "requests-per-second": (float, "requests per second"),
    "tokens-per-second": (float, "tokens per second"),
    "concurrency": (int, "concurrent requests"),
    "threads": (int, "search threads, and as many write threads"),
    "disk-bytes": (int, "bytes on disk of all corpora that the key may access"),
    "unread-bytes": (int, "bytes of unread answers"),
    "jobs": (int, "waiting and running jobs"),
}
"""Options of `isosphere keys add` that limit a key. If an option is not given, the server's option `--key-OPTION`
applies."""
REST = "The options of `isosphere serve` are also accepted, such as --data, --bundle and --engine."


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Return the parser of the command `verb`, such as `ingest`, or `serve`, which runs the server."""
    if verb in CORPUS_VERBS:
        return corpus_parser(verb)
    if verb == "openapi":
        return openapi_parser()
    if verb == "keys":
        return keys_parser()
    from serving.settings import parser_of_settings

    return parser_of_settings()


def openapi_parser() -> Parser:
    """Return the parser of `openapi`, a command without options."""
    return Parser(prog="isosphere openapi", **texts(*COMMANDS["openapi"][:2]))


def corpus_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a command that works on corpora without a server."""
    name = CALLED.get(verb, verb)
    said = texts(*COMMANDS[name][:2])
    said["epilog"] = f"{REST}\n\n{said['epilog']}"
    parser = Parser(prog=f"isosphere {name}", passes_on=True, allow_abbrev=False, **said)
    corpus: dict[str, Any] = {"type": _corpus_name, "metavar": "NAME"}
    if verb == "ingest":
        parser.add_argument(
            "file",
            type=Path,
            help="file of documents (jsonl, csv, json, txt with one document per line, parquet, arrow, md, html, pdf, "
            "docx; .gz and .zst are accepted), a folder of such files, or - for standard input",
        )
        parser.add_argument("--corpus", required=True, **corpus, help="name of the corpus")
        parser.add_argument(
            "--watch",
            action="store_true",
            help="keep running: add files of the folder when they are new or changed, and remove them when they are "
            "deleted",
        )
        parser.add_argument(
            "--url",
            help="URL of the server with the corpus, such as http://127.0.0.1:8080; the environment variable "
            "ISOSPHERE_API_KEY sets the API key (default: the corpus is in the folder --data)",
        )
        parser.add_argument(
            "--format",
            type=lambda name: {"jsonl": "ndjson"}.get(name, name),
            choices=FORMATS,
            help="format of the file (default: by the suffix of its name; ndjson for standard input)",
        )
        parser.add_argument("--text-column", help="column or json field with the text (default: text)")
        parser.add_argument("--id-column", help="column or json field with the id (default: id, if it exists)")
        parser.add_argument(
            "--column-types",
            default="header",
            metavar="header|auto|JSON",
            help='types of csv columns: header (year:number), auto (detected), or {"year": "number"} (default: header)',
        )
        parser.add_argument(
            "--charset",
            help="encoding of a text file, such as windows-1252 (default: the encoding of the byte order mark, else "
            "UTF-8)",
        )
        parser.add_argument(
            "--split",
            choices=("section", "file"),
            help="unit that becomes one document in md, html, pdf and docx: each section or page, or the whole file "
            "(default: section)",
        )
        parser.add_argument(
            "--metadata",
            default="{}",
            metavar="JSON",
            help='metadata for every document, such as {"team": "support"} (default: none)',
        )
        parser.add_argument(
            "--on-error",
            choices=("fail", "skip"),
            default="fail",
            help="fail stops at the first invalid row, skip leaves out invalid rows (default: fail)",
        )
        parser.add_argument(
            "--chunk-tokens", type=int, help="split longer texts into passages of at most this many tokens"
        )
        parser.add_argument(
            "--chunk-overlap", type=int, help="number of tokens that a passage shares with the previous passage"
        )
        parser.add_argument(
            "--stemming",
            choices=("none", "porter"),
            help="stemming of a new corpus for lexical search; porter compares English words by their stems",
        )
        vectors = parser.add_mutually_exclusive_group()
        vectors.add_argument(
            "--own-vectors",
            action="store_true",
            help="create a corpus of your own vectors: each document has a field vector, and no text is embedded",
        )
        vectors.add_argument(
            "--embedded",
            action="store_true",
            help="take the vectors from Parquet files that `isosphere embed` wrote with the corpus's encoder",
        )
    elif verb == "search":
        parser.add_argument("query", help="text to search for")
        parser.add_argument("--corpus", required=True, **corpus, help="name of the corpus")
        parser.add_argument("-k", type=_hits, default=10, help="maximum number of hits (default: 10)")
        parser.add_argument(
            "--mode", choices=("dense", "lexical", "hybrid"), default="dense", help="search mode (default: dense)"
        )
        parser.add_argument("--filter", type=_filter, help="filter on the metadata, as JSON")
        parser.add_argument("--exact", action="store_true", help="use exact search instead of the approximate index")
        parser.add_argument("--json", action="store_true", help="print one hit per line, as JSON")
    elif verb == "export":
        parser.add_argument("--corpus", required=True, **corpus, help="name of the corpus")
        parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
        parser.add_argument("--filter", type=_filter, help="filter on the metadata, as JSON (default: all documents)")
    elif verb == "copy":
        place = "PLACE#NAME, where PLACE is a data folder, milvus://HOST:PORT[/DATABASE] or a Milvus Lite (*.db)"
        parser.add_argument("source", help=f"corpus to copy: {place}")
        parser.add_argument(
            "target", help="place of the copy, in the same form; without a name, the copy has the name of the corpus"
        )
        parser.add_argument(
            "--replace", action="store_true", help="delete an existing corpus with this name at the place of the copy"
        )
    else:
        parser.add_argument(
            "--corpus",
            action="append",
            **corpus,
            help="corpus to check; repeat the option for several corpora (default: all)",
        )
    return parser


def keys_parser() -> Parser:
    """Return the parser of the command `keys` and its subcommands."""
    from serving.operations.keys import Scope

    variable = os.environ.get(KEYS_FILE)
    file = Parser(add_help=False)
    file.add_argument(
        "--api-keys-file",
        type=Path,
        default=Path(variable) if variable else None,
        help=f"file of API keys (default: the variable {KEYS_FILE})",
    )
    top = Parser(prog="isosphere keys", **texts(*COMMANDS["keys"][:2]))
    verbs = top.add_subparsers(dest="verb", required=True)
    add = verbs.add_parser(
        "add",
        parents=[file],
        **described("create a key and print it; it is not shown again", "keys add app --scopes read"),
    )
    add.add_argument("name", help="name of the key in logs and errors")
    add.add_argument(
        "--scopes",
        default="read",
        help=f"scopes of the key, separated by commas: {','.join(get_args(Scope))} (default: read)",
    )
    add.add_argument(
        "--corpora", help="patterns of accessible corpora, separated by commas, such as 'docs-*,faq' (default: all)"
    )
    for name, (kind, limit) in KEY_LIMITS.items():
        add.add_argument(f"--{name}", type=kind, help=f"maximum {limit} (default: --key-{name} of the server)")
    verbs.add_parser(
        "list",
        parents=[file],
        **described("list the keys with their scopes, corpora and limits, without the secrets", "keys list"),
    )
    revoke = verbs.add_parser(
        "revoke",
        parents=[file],
        **described("delete a key; a running server refuses the key after at most one second", "keys revoke app"),
    )
    revoke.add_argument("name", help="name of the key")
    return top


def _corpus_name(given: str) -> str:
    from serving.operations.bounds import check_corpus_name

    return _read(check_corpus_name, given)


def _filter(given: str) -> Filter:
    from serving.corpora.filter_language import read_filter

    return _read(lambda text: read_filter(text, "filter"), given)


def _hits(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and 1 <= int(given[:5]) <= MAX_HITS):
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_HITS}")
    return int(given)


def _read(reader: Callable[[str], T], given: str) -> T:
    try:
        return reader(given)
    except ServiceError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
