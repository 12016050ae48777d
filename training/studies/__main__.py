"""`python -m training.study FOLDER PARENT`: one run of a study, in a process that the study starts."""

from __future__ import annotations

import sys
from pathlib import Path

from models.command_line import quieten
from training.machine.interrupt import InterruptedRun, LockError
from training.machine.memory import keep_pages
from training.studies.schedule import ELSEWHERE, STOPPED, follow
from training.studies.work import carry_out


def main() -> int:
    """Carry out the run. Tracebacks go to the log, and its last line has the error."""
    keep_pages()
    folder, parent = sys.argv[1:]
    quieten()
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
