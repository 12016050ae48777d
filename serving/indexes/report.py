"""What an index says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from serving.indexes.seen import Seen


@dataclass(frozen=True, kw_only=True)
class Report:
    """Of the index that serves at this moment."""

    kind: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    """It was built with, and the effort it is searched with."""
    target: float
    """recall@10 that was asked for."""
    recall: float
    """recall@10 against exact search, measured on `queries`; 1.0 for exact search itself."""
    recall_by_filter: Mapping[str, float] = field(default_factory=dict)
    """By the share of the vectors that a filter lets pass."""
    queries: int = 0
    """Vectors that were held out."""
    build_seconds: float
    bytes: int
    """Memory and files."""
    main: int
    """Vectors built in, removed ones too."""
    tail: int
    """Vectors added since, searched exactly."""
    dead: int
    """Vectors of `main` that were removed."""
    state: Literal["ready", "building"]
    reason: str | None = None
    """Why it is exact, if it is."""

    @classmethod
    def of(cls, seen: Seen, *, target: float, memory: int, building: bool) -> Report:
        """Of `seen`, in the words of its foremost part."""
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
