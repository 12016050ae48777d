"""Print the OpenAPI document of a server without keys, which is also docs/openapi.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from models.command_line import Parser
from serving.app import routes


def openapi(arguments: Sequence[str]) -> int:
    """Write the document to stdout and return the exit status."""
    Parser(prog="isosphere openapi", description=__doc__).parse_args(arguments)
    sys.stdout.write(document())
    return 0


def document() -> str:
    """Return the document. It depends only on the code, not on machine or date."""
    return json.dumps(routes().openapi(), indent=1, ensure_ascii=False) + "\n"
