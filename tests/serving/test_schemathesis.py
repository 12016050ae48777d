"""Test of a live server against its OpenAPI document, with requests that are generated from the document.

The server is a process of its own, as for users. Calling routes inside this process would save little time, because
most of the time is spent on generating requests.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from serving.commands.serve import document
from tests.serving.conftest import Launcher

if TYPE_CHECKING:
    from schemathesis import Case
    from schemathesis.schemas import APIOperation

    Operation = APIOperation[Any, Any, Any, Any]
    AnyCase = Case[Operation]

MODEL, CORPUS, ALIAS = "fake", "known", "also-known"
RESTORED_WITHIN = 60.0
REQUESTS = 2_000
NIGHTLY_REQUESTS = 8_000
DOCUMENT: dict[str, Any] = {"id": "a", "text": "A text to find.", "metadata": {"lang": "en"}}
NEVER_SUCCEED = {
    "POST /predict",  # No cross-encoder is served.
    "GET /models/{id}/report",  # The fake bundle has no evaluation.
    "POST /admin/models",  # No other bundle exists here.
    "DELETE /admin/models/{id}",  # The only model is the default, which can't be removed.
    "PUT /corpora/{name}/restore",  # Neither the bytes nor the id of a snapshot is generated.
}


def _operations() -> Sequence[Operation]:
    import schemathesis  # Imported here, because no other test needs it.

    schemathesis.serializer.alias(["application/x-ndjson", "text/csv"], "text/plain")
    schemathesis.serializer.alias("application/zstd", "application/octet-stream")
    described = json.loads(document())
    schema = schemathesis.openapi.from_dict(described)
    return [schema[path][method] for path, methods in described["paths"].items() for method in methods]


def _cases(operation: Operation, there: dict[str, str]) -> st.SearchStrategy[AnyCase]:
    """Return the examples, valid requests and invalid requests of the document, for any and for existing places."""
    from schemathesis import GenerationMode

    def of_known_things(case: AnyCase) -> AnyCase:
        if operation.path in ("/search", "/aliases/{alias}") and isinstance(case.body, dict):
            case.body["corpus"] = CORPUS
        if operation.path.startswith("/api/") and isinstance(case.body, dict):
            case.body["model"] = MODEL
        return case

    known = [
        *operation.get_strategies_from_examples(path_parameters=there),
        operation.as_strategy(GenerationMode.POSITIVE, path_parameters=there),
    ]
    return st.one_of(
        *(cases.map(of_known_things) for cases in known),
        operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=there),
        operation.as_strategy(GenerationMode.POSITIVE),
        operation.as_strategy(GenerationMode.NEGATIVE),
    )


class Examiner:
    """Examiner of a server: it sends cases, compares the answers with the document, and counts them."""

    def __init__(self, address: str) -> None:
        from schemathesis import checks

        checks.load_all_checks()
        self.answered = Counter[tuple[str, int]]()
        self._address = address
        self._session = requests.Session()
        self._session.trust_env = False
        self._left_out = [
            checks.positive_data_acceptance,  # A document can't describe a bundle's prompts, width and vocabulary.
            checks.not_a_server_error,  # A deadline is allowed below, but its end may be reported.
        ]

    def examine(self, operation: Operation, cases: int) -> None:
        """Send `cases` requests, which are the same for the same document and code, whose constants Hypothesis uses."""
        self._stock()
        there = self._known(operation)

        @settings(
            max_examples=cases,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # A failure is shown as it was sent, because shrinking takes minutes.
            suppress_health_check=list(HealthCheck),
        )
        @given(case=_cases(operation, there))
        def every_answer_conforms(case: AnyCase) -> None:
            if operation.method == "delete":
                self._stock()
            answer = case.call(base_url=self._address, session=self._session)
            self.answered[operation.label, answer.status_code] += 1
            # Any route can answer this before its own checks.
            if answer.status_code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                return
            late = answer.status_code == 504 and "x-timeout-ms" in (case.headers or {})
            assert answer.status_code < 500 or late, f"{answer.status_code}: {answer.text}"
            assert answer.status_code != 424, f"the fake engine fails at nothing: {answer.text}"
            case.validate_response(answer, excluded_checks=[*self._left_out, *self._excused(case)])

        every_answer_conforms()

    def _excused(self, case: AnyCase) -> list[Any]:
        """Return the checks that do not apply to a case.

        An upload that skips wrong rows, or becomes a job, is not refused for them. A query has no lists and objects:
        their members are sent, and may be valid.
        """
        from schemathesis import checks

        query = case.query or {}
        excused = query.get("on_error") == "skip" or str(query.get("async", "")).lower() in (
            "true",
            "1",
            "yes",
            "on",
            "t",
            "y",
        )
        excused |= any(isinstance(value, list | dict) for value in query.values())
        return [checks.negative_data_rejection] if excused else []

    def _known(self, operation: Operation) -> dict[str, str]:
        """Return values of the path's parameters that exist."""
        id = {"jobs": self._job, "models": lambda: MODEL, "deployments": lambda: MODEL, "snapshots": self._snapshot}
        kind = next((kind for kind in id if f"/{kind}/" in operation.path), None)
        values = {"name": lambda: CORPUS, "alias": self._alias, "id": id[kind] if kind else lambda: DOCUMENT["id"]}
        return {name: value() for name, value in values.items() if f"{{{name}}}" in operation.path}

    def _job(self) -> str:
        """Return a job that is in the queue, runs or has ended."""
        return str(self._added("?async=true").json()["id"])

    def _added(self, query: str = "") -> Any:
        """Add the known document, once the corpus accepts it, because a corpus accepts none during a restore."""
        until = time.monotonic() + RESTORED_WITHIN
        while True:
            answer = self._session.post(f"{self._address}/corpora/{CORPUS}/documents{query}", json=[DOCUMENT])
            if answer.status_code != HTTPStatus.CONFLICT or time.monotonic() > until:
                answer.raise_for_status()
                return answer
            time.sleep(0.01)

    def _alias(self) -> str:
        """Return an alias of the known corpus."""
        self._session.put(f"{self._address}/aliases/{ALIAS}", json={"corpus": CORPUS}).raise_for_status()
        return ALIAS

    def _snapshot(self) -> str:
        """Return an existing snapshot."""
        snapshots = f"{self._address}/corpora/{CORPUS}/snapshots"
        answer = self._session.post(snapshots)
        if answer.status_code != HTTPStatus.CONFLICT:  # A snapshot is already being made.
            answer.raise_for_status()
        while not (found := self._session.get(snapshots).json()["snapshots"]):
            time.sleep(0.01)
        return str(found[0]["id"])

    def _stock(self) -> None:
        """Create the objects at the known places."""
        self._session.put(f"{self._address}/corpora/{CORPUS}").raise_for_status()
        self._added()

    def silent(self) -> set[str]:
        """Return the operations that answered only with errors."""
        labels = {label for label, _ in self.answered}
        return labels - {label for label, status in self.answered if status < 300}


@pytest.mark.parametrize(
    "number",
    [pytest.param(REQUESTS, marks=pytest.mark.slow), pytest.param(NIGHTLY_REQUESTS, marks=pytest.mark.nightly)],
)
def test_a_live_server_answers_as_the_document_says(number: int, launch: Launcher) -> None:
    server = launch()
    operations = _operations()
    examiner = Examiner(server.address)
    for operation in operations:
        examiner.examine(operation, math.ceil(number / len(operations)))
    assert examiner.silent() <= NEVER_SUCCEED
    assert examiner.answered.total() >= number
    assert server.client.get("/readyz").status_code == 200
