"""Whose an error is to mend, and so the exit code of the command that it ends."""

from __future__ import annotations


class Refused(ValueError):
    """What was given can't be used: the message names it, a command prints that alone and ends with 2."""


class Failed(RuntimeError):
    """Nothing that was given is to blame, as far as can be told: the message is one line, the exit code 1."""


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
