"""Number and size of the actors that embed, computed from the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from models.errors import Refused

READ_CPUS = 0.25
"""CPUs that Ray reserves for a task that reads input files. Reading mostly waits for disks and networks."""
ONE_THREAD_CPUS = 0.5
"""CPUs that Ray reserves for an actor with one thread.

The number must differ from `READ_CPUS`. Otherwise Ray Data would run the reader inside an actor, and one actor would
embed all parts of a file.
"""
Resources = Mapping[str, float]


class Pool(NamedTuple):
    """A number of actors of the same size, each with its own encoder."""

    actors: int
    threads: int
    """Threads of each actor."""
    cpus: float
    """CPUs that Ray reserves for each actor.

    If no GPUs are used, the number is less than `threads`, so that some CPUs remain for the tasks that read. If actors
    reserved all CPUs, a job would wait forever for its input.
    """
    gpus: int


def derive(nodes: Sequence[Resources], free: Resources, *, threads: int | None, device: str) -> Pool:
    """Return a pool with as many actors as the free CPUs allow.

    If GPUs are used, there is at most one actor for each free GPU. If no GPUs are used, a node with C CPUs gets at most
    C // `threads` actors.

    Args:
        nodes: resources of each node, by Ray's names.
        free: sum over all nodes of the resources that are not reserved by other jobs.
        threads: threads of an actor. None means one thread if GPUs are used, or else all CPUs of the smallest node.

    Raises:
        Refused: too few CPUs are free for an actor, or `device` is cuda and no GPU is free.
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
