"""The fields of an object of JSON: which is the text, which the id; the others are metadata, as in a table."""

from __future__ import annotations

from typing import Any

from serving.errors import Invalid
from serving.ingest.rows import Row, absent
from serving.json_body import misfit

_SHOWN = 80


def read_fields(row: Row, text_field: str | None, id_field: str | None) -> Row:
    """A row of JSON as the document that it should be, or what is wrong with it.

    Args:
        row: an object; anything else is given back.
        text_field: that is the text, `text` by default; where one is named an object must have it.
        id_field: the same for the id; the text is the id only where it is named as both.
    """
    if not isinstance(row.value, dict):
        return row
    text, id = text_field or "text", id_field or "id"
    if id_field is not None and id not in row.value:
        return row._replace(value=Invalid(f"is required; {absent(id, row.value, 'field', 'id_column')}", field=id))
    hint = "" if text in row.value else f"; {absent(text, row.value, 'field')}"
    others = {name: value for name, value in row.value.items() if value is not None and name not in (text, id)}
    try:
        metadata = _together(others.pop("metadata", {}), others)
    except Invalid as error:
        return row._replace(value=error)
    name = row.value.get(id) if id_field or id != text else None
    value = {"text": row.value.get(text), "id": name, "metadata": metadata}
    return Row(row.place, value, text_field=text, id_field=id, hint=hint)


def _together(metadata: Any, others: dict[str, Any]) -> Any:
    """Both; where `metadata` is no object it is told of elsewhere.

    Raises:
        Invalid: a field stands in both, or can't be stored.
    """
    if not isinstance(metadata, dict):
        return metadata
    for name, value in others.items():
        if name in metadata:
            raise Invalid("stands in metadata, too", field=name[:_SHOWN])
        if wrong := misfit({name: value}):
            raise Invalid(wrong[1], field=wrong[0])
    return metadata | others
