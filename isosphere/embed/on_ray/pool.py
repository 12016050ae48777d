"""Number and size of the actors that embed, from the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from models.errors import Refused

READ_CPUS = 0.25
"""CPUs that Ray reserves for a task that reads. Reading waits for disks and networks more than it computes."""
ONE_THREAD_CPUS = 0.5
"""CPUs that Ray reserves for an actor with one thread. Ray Data would let actors read if both numbers were equal, and
one actor would then embed all parts of a file."""
Resources = Mapping[str, float]


class Pool(NamedTuple):
    """Actors of one size, each with an encoder."""

    actors: int
    threads: int
    """Threads of each actor."""
    cpus: float
    """CPUs that Ray reserves for each actor. They are fewer than `threads`, because tasks that read need the rest: with
    all CPUs reserved for actors, a job would wait forever for its input."""
    gpus: int


def derive(nodes: Sequence[Resources], free: Resources, *, threads: int | None, device: str) -> Pool:
    """Derive the pool: an actor for each GPU, or for each `threads` CPUs of a node (default: all CPUs of the smallest).

    Args:
        nodes: resources of each node, by Ray's names.
        free: resources of all nodes that no other job has reserved.

    Raises:
        Refused: the cluster is too small, or it has no GPU and `device` is cuda.
    """
    cpus = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    unreserved = free.get("CPU", 0) - READ_CPUS
    gpus = int(free.get("GPU", 0)) if device != "cpu" else 0
    if device == "cuda" and not gpus:
        raise Refused("--device cuda: no GPU of the cluster is free")
    if gpus:
        pool = Pool(gpus, threads or 1, 1, 1)
    else:
        threads = threads or min(cpus, default=1)
        pool = Pool(sum(each // threads for each in cpus), threads, threads - 1 if threads > 1 else ONE_THREAD_CPUS, 0)
    actors = min(pool.actors, int(unreserved / pool.cpus))
    if actors < 1:
        raise Refused(
            f"the cluster is too small: an actor needs {pool.cpus + READ_CPUS:g} CPUs with its reader, and of the "
            f"{sum(cpus)} CPUs on {len(cpus)} nodes {free.get('CPU', 0):g} are free. Add nodes, wait for other jobs, "
            f"or use fewer --threads than {pool.threads}"
        )
    return pool._replace(actors=actors)
