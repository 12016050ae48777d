"""Base classes of errors. An error's class determines the exit code of a command."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class Refused(ValueError):
    """The user's input can't be used.

    The message names the input. A command prints the message without a traceback, and exits with code 2.
    """


class Failed(RuntimeError):
    """An error that the user's input did not cause. The message is one line. A command exits with code 1."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a suggestion with the name most similar to a misspelt word, or an empty text if no name is similar."""
    near = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def none_of(word: str, names: Iterable[str]) -> str:
    """Return the message that `word` is not one of `names`. The most similar name is suggested."""
    names = list(names)
    return f"{word!r} is none of {', '.join(names)}{did_you_mean(word, names)}"


def not_installed(error: ModuleNotFoundError) -> str:
    """Return a message with the missing package and its install command.

    Raises:
        ModuleNotFoundError: the missing module is part of this project, so `error` is raised again.
    """
    package = (error.name or "").partition(".")[0]
    if package in ("", "isosphere", "models", "training", "serving"):
        raise error
    installs = "`make setup` or, without a checkout, `pip install 'isosphere[train,data]'`"
    return f"the package {package} is not installed: {installs}"


def out_of_memory(error: Exception) -> bool:
    """Return whether `error` means that memory ran out.

    On CPUs, torch raises an unspecific `RuntimeError` in this case.
    """
    words = ("can't allocate memory", "cannot allocate memory", "not enough memory")
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or type(error).__name__ == "OutOfMemoryError"
        or any(word in str(error).lower() for word in words)
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def on_one_line(error: Exception) -> str:
    """Return an error's message with its lines joined, for use inside a sentence."""
    return " ".join(str(error).split()) or type(error).__name__
