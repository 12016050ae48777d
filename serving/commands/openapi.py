"""`isosphere openapi`: the OpenAPI document of a server without keys, as docs/openapi.json has it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from models.command_line import Parser
from serving.app import routes


def openapi(arguments: Sequence[str]) -> int:
    """The exit status; the document goes to stdout."""
    Parser(prog="isosphere openapi", description=__doc__).parse_args(arguments)
    sys.stdout.write(document())
    return 0


def document() -> str:
    """The same for every machine and every day: what it says is in the code alone."""
    return json.dumps(routes().openapi(), indent=1, ensure_ascii=False) + "\n"
