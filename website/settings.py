"""`python -m website.settings`: the page of the server's options, from `serving.settings`."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from serving.settings import Settings
from website.markdown import code, table

ABOUT = """\
# Server settings

This page lists every option of `isosphere serve`. Use it to look up a name, a default or a unit. It is generated from
the code.

Each option is a flag and an environment variable. If both are given, the flag counts.
[Keys](../keys.md), [operations](../operations.md) and [limits](../limits.md) say which options to set, and why.
"""


def page() -> str:
    """Render one row per option."""
    fields = Settings.model_fields.items()
    rows = [(_names(name, field), _default(field.default), field.description) for name, field in fields]
    return ABOUT + "\n" + table(("option, environment variable", "default", "description"), rows)


def _names(name: str, field: FieldInfo) -> str:
    values = "|".join(get_args(field.annotation)) if get_origin(field.annotation) is Literal else ""
    flag = f"--{name.replace('_', '-')} {values}".strip()
    return f"{code(flag)}<br>{code(f'ISOSPHERE_{name.upper()}')}"


def _default(value: Any) -> str:
    if value is None or value == "":
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


if __name__ == "__main__":
    print(page())
