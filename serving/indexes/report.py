"""The report on an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from serving.indexes.seen import Seen


@dataclass(frozen=True, kw_only=True)
class Report:
    """State of the index that serves at this moment."""

    kind: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Parameters of the build, and the effort of searches."""
    target: float
    """Requested recall@10."""
    recall: float
    """recall@10 against exact search, measured on `queries`. It is 1.0 for exact search itself."""
    recall_by_filter: Mapping[str, float] = field(default_factory=dict)
    """Recall by the share of the vectors that pass a filter."""
    queries: int = 0
    """Vectors that were held out as queries."""
    build_seconds: float
    bytes: int
    """Bytes in memory and files."""
    main: int
    """Vectors in the built parts, including removed ones."""
    tail: int
    """Vectors added since, which are searched exactly."""
    dead: int
    """Vectors of `main` that were removed."""
    state: Literal["ready", "building"]
    reason: str | None = None
    """The reason why search is exact, if it is."""

    @classmethod
    def of(cls, seen: Seen, *, target: float, memory: int, building: bool) -> Report:
        """Make the report on `seen`, with the details of its foremost part."""
        main, state = seen.foremost, "building" if building else "ready"
        found = cls(
            kind=main.kind,
            target=target,
            recall=min((part.main.tuning.recalls[1.0] for part in seen.parts if part.main.approximate), default=1.0),
            build_seconds=main.build_seconds,
            bytes=memory + seen.main.bytes,
            main=seen.built,
            tail=seen.tail_count,
            dead=seen.dead,
            state=cast("Literal['ready', 'building']", state),
            reason=main.reason,
        )
        if main.approximate is None:
            return found
        kind, parameters, _ = main.approximate
        tuning = main.tuning
        return replace(
            found,
            parameters=dict(parameters) | ({kind.knob: tuning.efforts[1.0]} if kind.knob else {}),
            recall_by_filter={f"{share:g}": recall for share, recall in tuning.recalls.items() if share < 1},
            queries=tuning.queries,
        )
