"""Removal of kernels for other GPUs from a shared library.

A CUDA library contains "fat binaries". Each is a container with the same kernels for several compute capabilities. The
driver uses only the entry for its device. The other entries make up most of the library. This module replaces their
bytes by zeros in place. Headers, sizes and offsets stay the same, and zeros compress to almost nothing.

NVIDIA does not document the layout of a container. We checked the result with nvJitLink 13.0, NVIDIA's own linker,
which reads containers without a GPU. For capability 9.0, it finds the same machine code before and after, in each of
the 1,150 containers of the wheels in `kit.toml`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""First bytes of a container: magic number, version, and size of the container's header in bytes."""
CONTAINER = struct.Struct("<8xQ")
"""Header of a container: 8 bytes that `MAGIC` describes, and the size of all entries in bytes."""
ENTRY = struct.Struct("<HHIQ12xI")
"""Header of an entry: kind, version, size of this header, and size of the payload.

At byte 28, the header has ten times the compute capability.
"""
PTX, CUBIN = 1, 2
"""Kinds of entries: PTX, which the driver compiles, and machine code."""


@dataclass(frozen=True)
class Entry:
    """An entry of a container: code of one kind for one compute capability."""

    kind: int
    capability: int
    start: int
    """Offset of the entry's payload in the library."""
    end: int


def containers(library: bytes | bytearray) -> Iterator[list[Entry]]:
    """Yield the list of entries of each container."""
    at = library.find(MAGIC)
    while at >= 0:
        begin = end = at + CONTAINER.size
        if begin <= len(library):
            end += CONTAINER.unpack_from(library, at)[0]
        entries = _entries(library, begin, end)
        if entries:
            yield entries
        at = library.find(MAGIC, end if entries else begin)


def _entries(library: bytes | bytearray, begin: int, end: int) -> list[Entry] | None:
    """Return the entries of a container, or None if the magic number matched by chance."""
    found = []
    while begin < end <= len(library):
        if begin + ENTRY.size > end:
            return None
        kind, _, header, size, capability = ENTRY.unpack_from(library, begin)
        payload = begin + header
        begin = payload + size
        if header < ENTRY.size or begin > end:
            return None
        found.append(Entry(kind, capability, payload, begin))
    return found or None


def empty_others(library: bytearray, capability: int) -> int:
    """Zero all entries that a device of this compute capability (90 for 9.0) never loads.

    Return the number of zeroed bytes. A container without machine code for the capability is not changed, because the
    device runs another of its entries.
    """
    emptied = 0
    for entries in containers(library):
        if any(entry.kind == CUBIN and entry.capability == capability for entry in entries):
            for entry in entries:
                if entry.kind in (PTX, CUBIN) and (entry.kind, entry.capability) != (CUBIN, capability):
                    library[entry.start : entry.end] = bytes(entry.end - entry.start)
                    emptied += entry.end - entry.start
    return emptied
