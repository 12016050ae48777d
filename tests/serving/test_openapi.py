"""Tests of the OpenAPI document: it is up to date, complete and typed, and its examples are right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator

from serving.commands.serve import document
from serving.corpora.ingest.json_documents import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(document())
OPERATIONS = [
    (method, path, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]
EVERYWHERE = {"400", "401", "403", "408", "413", "415", "422", "429", "503", "504"}
ERRORS = EVERYWHERE | {"404", "409", "424", "501", "507"}
FAMILIES = {"cohere": ("/v2/",), "ollama": ("/api/",), "openai": ("/v1/", "/models/", "/openai/")}
SAYS_WHAT_IT_IS = {"type", "anyOf", "oneOf", "$ref", "enum", "const"}


def test_the_file_is_the_application_s() -> None:
    assert FILE.read_text() == document(), "write it again: .venv/bin/isosphere openapi > docs/openapi.json"


@pytest.mark.slow
def test_the_verb_writes_it_whatever_the_environment(tmp_path: Path) -> None:
    written = subprocess.run(
        [sys.executable, "-m", "serving", "openapi"],
        cwd=tmp_path,
        env={"ISOSPHERE_API_KEYS_FILE": str(tmp_path / "none"), "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    assert written.stdout.decode() == document()


def test_a_server_serves_it(client: TestClient) -> None:
    for _ in range(2):
        assert client.get("/openapi.json").json() == DOCUMENT


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=lambda one: one if isinstance(one, str) else ""
)
def test_every_operation_says_what_it_answers(method: str, path: str, operation: dict[str, Any]) -> None:
    assert operation["summary"] and operation["description"] and operation["operationId"]
    assert not any(
        parameter for parameter in operation["parameters"] if not (parameter.get("schema") or "$ref" in parameter)
    )
    results = set(operation["responses"]) - ERRORS
    assert results and results <= {"200", "201", "202", "204"}, "a result, and no status that nobody chose"
    assert set(operation["responses"]) >= EVERYWHERE
    for status, answer in operation["responses"].items():
        family = next((name for name, paths in FAMILIES.items() if path.startswith(paths)), "native")
        if status in ERRORS:
            family = "native" if "/pipeline/" in path or path.endswith("/report") else family
            assert answer == {"$ref": f"#/components/responses/{family}-{status}"}
        else:
            assert ("content" in answer) == (status != "204")
            assert all(content["schema"] for content in answer.get("content", {}).values())


def test_whatever_writes_may_find_the_disk_full() -> None:
    full = {f"{method} {path}" for method, path, operation in OPERATIONS if "507" in operation["responses"]}
    corpus = "/corpora/{name}"
    assert full == {
        f"put {corpus}",
        f"patch {corpus}",
        f"delete {corpus}",
        f"post {corpus}/documents",
        f"patch {corpus}/documents",
        f"patch {corpus}/documents/{{id}}",
        f"delete {corpus}/documents",
        f"delete {corpus}/documents/{{id}}",
        f"post {corpus}/adapt",
        f"post {corpus}/map",
        f"post {corpus}/reembed",
        f"post {corpus}/snapshots",
        f"delete {corpus}/snapshots/{{id}}",
        f"put {corpus}/restore",
        "put /aliases/{alias}",
        "delete /aliases/{alias}",
        "delete /jobs/{id}",
    }


def test_snapshots_and_maps_may_be_left_to_another_engine_and_training_may_not_be_installed() -> None:
    left = {f"{method} {path}" for method, path, operation in OPERATIONS if "501" in operation["responses"]}
    paths = ("post /corpora/{name}/adapt", "post /corpora/{name}/map", "post /corpora/{name}/snapshots")
    assert left == {*paths, "put /corpora/{name}/restore"}


def test_a_body_is_refused_the_options_that_the_query_has() -> None:
    parameters = DOCUMENT["paths"]["/corpora/{name}/documents"]["post"]["parameters"]
    assert {one["name"] for one in parameters if one.get("in") == "query"} == set(OPTIONS)


def test_every_error_has_the_body_of_its_family() -> None:
    bodies = {"native": "ErrorAnswer", "openai": "OpenAIError", "cohere": "CohereError", "ollama": "OllamaError"}
    responses = DOCUMENT["components"]["responses"]
    assert set(responses) == {f"{family}-{status}" for family in bodies for status in ERRORS}
    for name, response in responses.items():
        family, status = name.split("-")
        assert response["content"]["application/json"]["schema"]["$ref"].endswith(f"/{bodies[family]}")
        assert ("retry-after" in response["headers"]) == (status in ("429", "503"))
        assert ("www-authenticate" in response["headers"]) == (status == "401")


def test_every_field_has_a_type() -> None:
    schemas = [*_schemas(DOCUMENT["paths"], "paths"), *_schemas(DOCUMENT["components"], "components")]
    assert len(schemas) > 100
    for place, schema in schemas:
        assert schema.keys() & SAYS_WHAT_IT_IS, place


def _schemas(node: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema under `node`, including those of bodies, parameters and headers, and nested ones."""
    if isinstance(node, list):
        for i, one in enumerate(node):
            yield from _schemas(one, f"{place}.{i}")
    elif isinstance(node, dict):
        for key, one in node.items():
            if key in ("schema", "items"):
                yield f"{place}.{key}", one
            elif key in ("properties", "schemas"):
                yield from ((f"{place}.{key}.{name}", schema) for name, schema in one.items())
            elif key == "additionalProperties" and isinstance(one, dict):
                yield f"{place}.{key}", one
            yield from _schemas(one, f"{place}.{key}")


def test_every_reference_leads_somewhere() -> None:
    references = set(_values(DOCUMENT, "$ref"))
    assert references
    for reference in references:
        target: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]
    for kind in ("schemas", "responses", "headers", "parameters"):
        for name in DOCUMENT["components"][kind]:
            unused = f"#/components/{kind}/{name}" not in references
            assert not unused or kind == "responses", f"{kind}/{name} is used by nothing"


def _values(node: Any, key: str) -> Iterator[Any]:
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from _values(one, key)


def test_examples_are_what_their_schemas_ask_for() -> None:
    shown = 0
    for place, schema in [*_schemas(DOCUMENT["paths"], "paths"), *_schemas(DOCUMENT["components"], "components")]:
        for example in [*schema.get("examples", ()), *([schema["example"]] if "example" in schema else [])]:
            shown += 1
            _check(example, schema, place)
        if "default" in schema:
            _check(schema["default"], schema, place)
    assert shown > 5


def test_a_schema_refuses_what_is_wrong() -> None:
    body = {"$ref": "#/components/schemas/EmbedRequest"}
    _check({"inputs": "a", "normalize": None}, body, "null is absent")
    wrongs: list[dict[str, Any]] = [{}, {"inputs": []}, {"inputs": None}, {"inputs": "a", "dimensions": 0}]
    for wrong in wrongs:
        with pytest.raises(AssertionError):
            _check(wrong, body, "body")


def _check(value: Any, schema: dict[str, Any], place: str) -> None:
    complaint = next(Draft202012Validator(schema | {"components": DOCUMENT["components"]}).iter_errors(value), None)
    assert complaint is None, f"{place}: {complaint and complaint.message}"
