"""Which builds of the native libraries are installed: two of one family break each other."""

from __future__ import annotations

from importlib.metadata import distributions

FAMILIES = ("onnxruntime", "faiss")


class ClashError(RuntimeError):
    """Two builds of one library are installed over each other; the message names them and the way out."""


def refuse_clashes() -> None:
    """Builds of one family install the same module name, so the last one installed half-overwrites the others.

    Raises:
        ClashError: there are two of one family.
    """
    names = {str(found.metadata["Name"]).lower() for found in distributions()}
    for family in FAMILIES:
        builds = sorted(name for name in names if name == family or name.startswith(f"{family}-"))
        if len(builds) > 1:
            raise ClashError(
                f"{' and '.join(builds)} are installed together and overwrite each other: "
                "`make clean setup EXTRAS=cpu` (or gpu) leaves one"
            )
