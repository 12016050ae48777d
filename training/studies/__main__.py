"""`python -m training.studies FOLDER PARENT`: the process that a study starts to carry out one run."""

from __future__ import annotations

import sys
from pathlib import Path

from models.cli.command_line import quieten
from training.machine.interrupt import InterruptedRun, LockError
from training.machine.memory import reuse_memory
from training.studies.schedule import LOCKED_ELSEWHERE, STOPPED, stop_with_parent
from training.studies.work import run_trial


def main() -> int:
    """Carry out the run in the folder FOLDER, and return the exit code of this process.

    The code is 0 if the run is finished, `STOPPED` if it was interrupted, and `LOCKED_ELSEWHERE` if another process
    works on it. If the run fails, the error is raised. Its traceback goes to the run's log, so the last line of the log
    is the error.
    """
    reuse_memory()
    folder, parent = sys.argv[1:]
    quieten()
    try:
        stop_with_parent(int(parent))
        run_trial(Path(folder), sys.stderr)
    except (InterruptedRun, KeyboardInterrupt) as stop:
        print(stop or "interrupted", file=sys.stderr)
        return STOPPED
    except LockError as error:
        print(error, file=sys.stderr)
        return LOCKED_ELSEWHERE
    return 0


if __name__ == "__main__":
    sys.exit(main())
