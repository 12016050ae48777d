"""`python -m website.http_api`: the page of every route, from the OpenAPI document of the application."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from serving.commands.serve import document
from website.markdown import code, table

ABOUT = """\
# HTTP API

This page lists every route with its parameters, bodies and statuses. Use it to look up a field. [The guide](../api.md)
shows how to use the API. The page is generated from the OpenAPI document, which every server has at `/openapi.json`.
"""
Schema = dict[str, Any]
TITLES = {"openai": "OpenAI"}
DOCUMENT: Schema = json.loads(document())


def page() -> str:
    """Render the routes by tag, then the bodies that they name."""
    by_tag: dict[str, list[str]] = defaultdict(list)
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            by_tag[operation["tags"][0]] += _operation(method.upper(), path, operation)
    parts = [ABOUT]
    for tag, routes in by_tag.items():
        parts += [f"## {TITLES.get(tag, tag.capitalize())}", *routes]
    parts += [*_errors(), "## Bodies"]
    for name, schema in DOCUMENT["components"]["schemas"].items():
        parts += [f"### {name}", *_body(schema)]
    return "\n\n".join(parts)


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"### {method} {code(path)}"
    yield f"**{operation['summary']}.** {operation['description']}"
    if parameters := [_resolved(one) for one in operation.get("parameters", ())]:
        yield "Parameters:"
        yield table(
            ("name", "in", "type", "default", "description"),
            [(code(one["name"]), one["in"], *_type_and_default(one), one.get("description")) for one in parameters],
        )
    if body := operation.get("requestBody"):
        required = "" if body.get("required") else " (optional)"
        yield f"Body{required}: {_content(body)}"
    yield "Answers:"
    errors = {status: _resolved(answer) for status, answer in operation["responses"].items() if "$ref" in answer}
    results = {status: answer for status, answer in operation["responses"].items() if status not in errors}
    yield table(("status", "body"), [(code(status), _content(answer) or "empty") for status, answer in results.items()])
    bodies = sorted({_content(answer) for answer in errors.values()})
    yield f"[Errors](#errors): {', '.join(map(code, errors))}, each with the body {' or '.join(bodies)}."


def _errors() -> Iterator[str]:
    """Render each status once: the routes share its meaning."""
    yield "## Errors"
    yield "A status means the same on every route."
    meanings = {name.rpartition("-")[2]: answer for name, answer in DOCUMENT["components"]["responses"].items()}
    yield table(("status", "when"), [(code(status), answer["description"]) for status, answer in meanings.items()])


def _body(schema: Schema) -> Iterator[str]:
    if said := schema.get("description"):
        yield said
    if "properties" not in schema:
        yield _type(schema)
        return
    required = schema.get("required", ())
    yield table(
        ("field", "type", "default", "description"),
        [
            (code(name), kind, "required" if name in required else default, field.get("description"))
            for name, field in schema["properties"].items()
            for kind, default in [_type_and_default({"schema": field})]
        ],
    )


def _type_and_default(parameter: Schema) -> tuple[str, str]:
    schema = parameter["schema"]
    if parameter.get("required"):
        return _type(schema), "required"
    default = schema.get("default")
    return _type(schema), "" if default is None else code(json.dumps(default, ensure_ascii=False))


def _content(body: Schema) -> str:
    """List what a body may be; JSON where no content type is named."""
    return "; ".join(
        _type(content.get("schema", {})) if kind == "application/json" else f"{code(kind)}"
        for kind, content in body.get("content", {}).items()
    )


def _type(schema: Schema) -> str:
    """Name a schema in a few words, with links to the bodies in it."""
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            said = f"[{name}](#{name.lower()})"
        case {"anyOf": choices} | {"oneOf": choices}:
            said = " or ".join(dict.fromkeys(_type(one) for one in choices if one != {"type": "null"}))
        case {"enum": values}:
            said = ", ".join(code(json.dumps(value)) for value in values)
        case {"const": value}:
            said = code(json.dumps(value))
        case {"type": "array"}:
            items = schema.get("prefixItems", [schema.get("items", {})])
            said = f"list of {', '.join(map(_type, items))}"
        case {"type": kind}:
            said = f"{kind}{_bounds(schema)}"
        case _:
            said = "any"
    return said


def _bounds(schema: Schema) -> str:
    least, most = (f"{schema[side]:.10g}" if side in schema else "" for side in ("minimum", "maximum"))
    return f" ({least}…{most})" if least or most else ""


def _resolved(part: Schema) -> Schema:
    """Return what a reference to another place of the document stands for."""
    if "$ref" not in part:
        return part
    found = DOCUMENT
    for step in part["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return found


if __name__ == "__main__":
    print(page())
