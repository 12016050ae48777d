"""`python -m serving.corpora.tsne D < VECTORS` computes a map of unit vectors. It prints progress as JSON lines."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

import numpy as np


def main() -> int:
    """Compute the map of the (N, D) float32 vectors on standard input, and return the exit status.

    The last line of the output has the (N, 2) coordinates or, if there is an error, the error.
    """
    with suppress(OSError):  # a sandbox may forbid this call
        os.nice(10)
    vectors = np.frombuffer(sys.stdin.buffer.read(), np.float32).reshape(-1, int(sys.argv[1]))
    from serving.corpora.tsne.layout import placed

    try:
        print(json.dumps({"places": placed(vectors, _report).tolist()}))
        return 0
    except BrokenPipeError:  # the parent process was killed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    return 1


def _report(done: int, total: int) -> None:
    print(json.dumps({"done": done, "total": total}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
