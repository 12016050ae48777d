"""Whose an error is to mend, and so the exit code of the command that it ends."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Refused(ValueError):
    """What was given can't be used: the message names it, a command prints that alone and ends with 2."""


class Failed(RuntimeError):
    """Nothing that was given is to blame, as far as can be told: the message is one line, the exit code 1."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Ask about the name that is nearest to a misspelt one; empty where none is near."""
    near = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def none_of(word: str, names: Iterable[str]) -> str:
    """Say that a word is none of the names there are, and ask about the nearest."""
    names = list(names)
    return f"{word!r} is none of {', '.join(names)}{did_you_mean(word, names)}"


def not_installed(error: ModuleNotFoundError) -> str:
    """Name the missing package and the command that installs it; raise `error` where the module is one of ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "models", "training", "serving"):
        raise error
    return f"the package {package} is not installed: `make setup` installs everything"


def out_of_memory(error: Exception) -> bool:
    """Whether there was too little of it: torch says so by a `RuntimeError`, on a GPU of a class of its own."""
    words = ("can't allocate memory", "not enough memory")
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(word in str(error) for word in words)
    )


def first_line(error: Exception) -> str:
    """Of what it says, where the rest is a list: of tensors, of frames. Its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def on_one_line(error: Exception) -> str:
    """All that it says, where its lines are one sentence."""
    return " ".join(str(error).split()) or type(error).__name__
