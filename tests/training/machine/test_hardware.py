from __future__ import annotations

import pytest
import torch

from training.machine.hardware import HardwareError, autocast_dtype, pick_device

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"amx_bf16": True}, torch.bfloat16),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"avx512_f": True, "amx_bf16": False}, None),
        ({}, None),
    ],
)
def test_bf16_where_the_cpu_multiplies_it(
    capabilities: dict[str, bool], expected: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert autocast_dtype("auto", CPU) == expected


def test_what_is_asked_for_is_done() -> None:
    assert autocast_dtype("bf16", CPU) == torch.bfloat16
    assert autocast_dtype("fp32", CPU) is None


def test_devices() -> None:
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type in ("cpu", "cuda")
    with pytest.raises(HardwareError, match="device 'abacus'"):
        pick_device("abacus")
