"""Tests of the removal of GPU kernels: kernels for other GPUs are emptied, and no other byte changes."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import kernels


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """Return the bytes of a container whose entries have this kind, capability and payload."""
    body = b"".join(struct.pack("<HHIQ12xI32x", kind, 1, 64, len(each), at) + each for kind, at, each in entries)
    return kernels.MAGIC + struct.pack("<Q", len(body)) + body


payloads = st.binary(min_size=1, max_size=30)
entries = st.tuples(st.integers(1, 9), st.sampled_from([75, 80, 90, 120]), payloads)


@given(st.lists(st.tuples(st.lists(entries, max_size=6), st.binary(max_size=20)), max_size=4))
def test_kernels_for_other_devices_are_emptied_and_nothing_else(
    library: list[tuple[list[tuple[int, int, bytes]], bytes]],
) -> None:
    def emptied(kind: int, capability: int, payload: bytes, among: list[tuple[int, int, bytes]]) -> bytes:
        machine_code = any((kind, capability) == (kernels.CUBIN, 90) for kind, capability, _ in among)
        other = kind in (kernels.PTX, kernels.CUBIN) and (kind, capability) != (kernels.CUBIN, 90)
        return bytes(len(payload)) if machine_code and other else payload

    whole = bytearray(b"".join(container(*each) + between for each, between in library))
    expected = b"".join(
        container(*((kind, at, emptied(kind, at, payload, each)) for kind, at, payload in each)) + between
        for each, between in library
    )
    kernels.empty_others(whole, 90)
    assert whole == expected


@given(st.lists(entries, min_size=1, max_size=3), st.data())
def test_bytes_that_only_begin_like_a_container_stay(
    given_entries: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    """Check that a truncated container is not emptied, and that a container after it is still found."""
    whole = container(*given_entries)
    cut = whole[: data.draw(st.integers(len(kernels.MAGIC), len(whole) - 1))]
    assert not list(kernels.containers(cut))
    assert not list(kernels.containers(kernels.MAGIC + bytes(8)))
    behind = kernels.MAGIC + b"\xff" * 8 + whole
    assert len(list(kernels.containers(behind))) == 1
