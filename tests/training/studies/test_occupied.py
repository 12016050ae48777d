from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from training.machine.interrupt import LOCK, LockError, locked
from training.studies.schedule import is_locked, locked_with_retry


@pytest.mark.slow
def test_a_folder_is_occupied_as_long_as_a_process_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert not is_locked(folder) and not folder.exists(), "to ask makes nothing"
    with locked_with_retry(folder):
        assert is_locked(folder)
        with pytest.raises(LockError, match="another process is using this folder"), locked_with_retry(folder):
            pass
    assert not is_locked(folder) and (folder / LOCK).exists()


def test_who_asks_does_not_keep_out_who_comes_to_work(tmp_path: Path) -> None:
    """Check the lock without pause while a run starts again and again."""
    asked, over = 0, threading.Event()

    def ask() -> None:
        nonlocal asked
        while not over.is_set():
            is_locked(tmp_path)
            asked += 1

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(200):
            with locked_with_retry(tmp_path):
                pass
    finally:
        over.set()
        asking.join()
    assert asked > 0


def test_a_lock_that_is_given_back_soon_is_waited_for(tmp_path: Path) -> None:
    held = threading.Event()

    def hold() -> None:
        with locked(tmp_path):
            held.set()
            time.sleep(0.1)

    holding = threading.Thread(target=hold)
    holding.start()
    assert held.wait(PATIENCE)
    with locked_with_retry(tmp_path):
        pass
    holding.join()


def test_an_error_of_the_work_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="of the work"), locked_with_retry(tmp_path):
        raise LockError("of the work")
    assert not is_locked(tmp_path)
