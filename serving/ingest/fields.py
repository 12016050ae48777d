"""The fields of a JSON object: the text, the id, and all others as metadata, as in a table."""

from __future__ import annotations

from typing import Any

from serving.errors import Invalid
from serving.ingest.rows import Row, absent
from serving.json_body import misfit

_SHOWN = 80


def read_fields(row: Row, text_field: str | None, id_field: str | None) -> Row:
    """Return a row of JSON as a raw document, or with the error in it.

    Args:
        row: an object. Anything else is returned unchanged.
        text_field: the field with the text, `text` by default. If it is given, an object must have it.
        id_field: the same for the id. One field is text and id only if it is given as both.
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
    """Merge both. If `metadata` is no object, it is returned unchanged and reported later.

    Raises:
        Invalid: a field is in both, or can't be stored.
    """
    if not isinstance(metadata, dict):
        return metadata
    for name, value in others.items():
        if name in metadata:
            raise Invalid("stands in metadata, too", field=name[:_SHOWN])
        if wrong := misfit({name: value}):
            raise Invalid(wrong[1], field=wrong[0])
    return metadata | others
