"""Check of the installed builds of native libraries: two builds of one family break each other."""

from __future__ import annotations

from importlib.metadata import distributions

FAMILIES = ("onnxruntime", "faiss")


class ClashError(RuntimeError):
    """Two builds of one library are installed over each other. The message names them and the way out."""


def refuse_clashes() -> None:
    """Refuse two installed builds of one family.

    They install the same module name, so the last one installed half-overwrites the others.

    Raises:
        ClashError: two builds of one family are installed.
    """
    names = {str(found.metadata["Name"]).lower() for found in distributions()}
    for family in FAMILIES:
        builds = sorted(name for name in names if name == family or name.startswith(f"{family}-"))
        if len(builds) > 1:
            raise ClashError(
                f"{' and '.join(builds)} are installed together and overwrite each other: "
                "`make clean setup EXTRAS=cpu` (or gpu) leaves one"
            )
