"""`python -m training.study FOLDER PARENT`: one run of a study, in the process that a study starts for it."""

from __future__ import annotations

import sys
from pathlib import Path

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from training.lock import LockError
from training.loop import InterruptedRun
from training.memory import keep_pages
from training.study.schedule import ELSEWHERE, STOPPED
from training.study.stopping import follow
from training.study.work import carry_out


def main() -> int:
    """What goes wrong is for the log, in full; its last line says what it was."""
    keep_pages()
    folder, parent = sys.argv[1:]
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own, one for each file it opens
    set_verbosity_error()  # type: ignore[no-untyped-call]  # no report on weights that pooling does without
    try:
        follow(int(parent))
        carry_out(Path(folder), sys.stderr)
    except (InterruptedRun, KeyboardInterrupt) as stop:
        print(stop or "interrupted", file=sys.stderr)
        return STOPPED
    except LockError as error:
        print(error, file=sys.stderr)
        return ELSEWHERE
    return 0


if __name__ == "__main__":
    sys.exit(main())
