from __future__ import annotations

import signal

import pytest

from training.machine.interrupt import interruptible, terminable


@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_a_second_ctrl_c_interrupts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible() as pressed:
        assert not pressed()
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("listening_to_ctrl_c")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_request_to_end_is_ctrl_c(ignored: bool) -> None:
    before = signal.getsignal(signal.SIGTERM)
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_a_run_that_is_asked_to_end_ends_its_step_first() -> None:
    with terminable(), interruptible() as pressed:
        signal.raise_signal(signal.SIGTERM)
        assert pressed()
