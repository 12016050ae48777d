"""What an index says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from serving.indexes.main import Main


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
    """Vectors added since."""
    dead: int
    """Vectors of `main` that were removed."""
    state: Literal["ready", "building"]
    reason: str | None = None
    """Why it is exact, if it is."""

    @classmethod
    def of(cls, main: Main, *, target: float, tail: int, dead: int, memory: int, building: bool) -> Report:
        """Of `main` and what goes with it."""
        state: Literal["ready", "building"] = "building" if building else "ready"
        if main.approximate is None:
            return cls(
                kind=main.kind,
                target=target,
                recall=1.0,
                build_seconds=main.build_seconds,
                bytes=memory + main.bytes,
                main=len(main.keys),
                tail=tail,
                dead=dead,
                state=state,
                reason=main.reason,
            )
        kind, parameters, _ = main.approximate
        tuning = main.tuning
        return cls(
            kind=main.kind,
            parameters=dict(parameters) | ({kind.knob: tuning.efforts[1.0]} if kind.knob else {}),
            target=target,
            recall=tuning.recalls[1.0],
            recall_by_filter={f"{share:g}": recall for share, recall in tuning.recalls.items() if share < 1},
            queries=tuning.queries,
            build_seconds=main.build_seconds,
            bytes=memory + main.bytes,
            main=len(main.keys),
            tail=tail,
            dead=dead,
            state=state,
        )
