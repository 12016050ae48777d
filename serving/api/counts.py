"""Limits on the number of texts and token ids in a body, checked before any of them is read."""

from __future__ import annotations

from typing import Any

from serving.bounds import check_count
from serving.filters import is_number
from serving.settings import Settings

_TEXTS, _TEXTS_OR_IDS = ("queries", "texts"), ("inputs", "input", "ids")
_SIDES = ("sentences", "sentences_a", "sentences_b")


def check_counts(body: Any, settings: Settings) -> None:
    """Refuse a body with more texts or token ids than one request may have.

    Raises:
        TooLarge: there are too many; the message names the field.
    """
    if not isinstance(body, dict):
        return
    inputs = body.get("inputs")
    sides = {f"inputs.{side}": inputs.get(side) for side in _SIDES} if isinstance(inputs, dict) else {}
    for field, value in {**{name: body.get(name) for name in _TEXTS}, **sides}.items():
        if isinstance(value, list):
            check_count(len(value), settings.max_request_texts, field)
    for field in _TEXTS_OR_IDS:
        if isinstance(value := body.get(field), list):
            _check_texts_or_ids(value, settings, field)


def _check_texts_or_ids(inputs: list[Any], settings: Settings, field: str) -> None:
    if inputs and is_number(inputs[0]):
        ids = len(inputs)
    else:
        check_count(len(inputs), settings.max_request_texts, field)
        ids = sum(len(one) for one in inputs if isinstance(one, list))
    check_count(ids, settings.max_request_tokens, field, "token ids")
