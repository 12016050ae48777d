"""Base classes of errors by cause, which sets the command's exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Refused(ValueError):
    """The user's input can't be used. The message names it; a command prints only the message and exits with 2."""


class Failed(RuntimeError):
    """An error that no input is known to cause. The message is one line, and the exit code is 1."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Suggest the name nearest to a misspelt one; return an empty text if none is near."""
    near = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def none_of(word: str, names: Iterable[str]) -> str:
    """Return a message that a word is none of the names, with a suggestion."""
    names = list(names)
    return f"{word!r} is none of {', '.join(names)}{did_you_mean(word, names)}"


def not_installed(error: ModuleNotFoundError) -> str:
    """Return a message with the missing package and its installation; raise `error` if the module is one of ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "models", "training", "serving"):
        raise error
    return f"the package {package} is not installed: `make setup` installs everything"


def out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out. torch raises a `RuntimeError`, and a class of its own on a GPU."""
    words = ("can't allocate memory", "not enough memory")
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(word in str(error) for word in words)
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, whose rest is a list; its class if there is no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def on_one_line(error: Exception) -> str:
    """Join the lines of an error's message, which are one sentence."""
    return " ".join(str(error).split()) or type(error).__name__
