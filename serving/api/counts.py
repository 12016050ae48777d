"""How many texts and token ids a body brings, counted before any of them is looked at."""

from __future__ import annotations

from typing import Any

from serving.embedder import check_count
from serving.errors import TooLarge
from serving.settings import Settings

_SIDES = ("sentences", "sentences_a", "sentences_b")


def check_counts(body: Any, settings: Settings) -> None:
    """Refuse a body that holds more than one request may.

    Raises:
        TooLarge: the message names the field.
    """
    if not isinstance(body, dict):
        return
    inputs, queries, openai = (body.get(name) for name in ("inputs", "queries", "input"))
    sides = {f"inputs.{side}": inputs.get(side) for side in _SIDES} if isinstance(inputs, dict) else {}
    for field, value in {"inputs": inputs, "queries": queries, **sides}.items():
        if isinstance(value, list):
            check_count(len(value), settings.max_request_texts, field)
    if isinstance(openai, list):
        _check_texts_or_ids(openai, settings)


def _check_texts_or_ids(inputs: list[Any], settings: Settings) -> None:
    if inputs and isinstance(inputs[0], int):
        ids = len(inputs)
    else:
        check_count(len(inputs), settings.max_request_texts, "input")
        ids = sum(len(one) for one in inputs if isinstance(one, list))
    if ids > settings.max_request_tokens:
        raise TooLarge(f"{ids} token ids are more than the {settings.max_request_tokens} of one request", field="input")
