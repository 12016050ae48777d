"""The results file of a part. It is complete after every figure, so that a killed part leaves its results."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.bundle.disk import make_folder, write_whole
from models.errors import first_line


class Report:
    """A writer that rewrites `PART.json` with every figure."""

    def __init__(self, file: Path, head: Mapping[str, Any]) -> None:
        self._file, self._began = file, time.monotonic()
        self._head, self._figures, self._errors = dict(head), dict[str, Any](), list[str]()
        make_folder(file.parent)
        self._write()

    @property
    def failed(self) -> bool:
        """Return whether a measurement failed."""
        return bool(self._errors)

    def keep(self, name: str, figures: Any) -> None:
        """Store figures under a name, and replace earlier ones."""
        self._figures[name] = figures
        self._write()

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Record the error of a measurement, and let the part continue with the next one."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.fail(f"{name}: {type(error).__name__}: {first_line(error)}")

    def fail(self, error: str) -> None:
        """Add to the file's `error`."""
        self._errors.append(error)
        self._write()

    def _write(self) -> None:
        content = self._head | {"seconds": round(time.monotonic() - self._began, 1)}
        content |= {"error": "; ".join(self._errors)} if self._errors else {}
        write_whole(self._file, json.dumps(content | {"figures": self._figures}, indent=1) + "\n")


def add_error(file: Path, part: str, command: str, error: str) -> None:
    """Record why a part's process ended, if it could not do so itself."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"part": part, "command": command}
    said = [content["error"]] if "error" in content else []
    figures = content.pop("figures", {})
    content |= {"error": "; ".join([*said, error]), "figures": figures}
    make_folder(file.parent)
    write_whole(file, json.dumps(content, indent=1) + "\n")
