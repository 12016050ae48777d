"""Whose an error is to mend: what every error of `models` and `training` says of itself, and a command's exit code."""

from __future__ import annotations


class Refused(ValueError):
    """What was given can't be used: the message names it, a command prints that alone and ends with 2."""


class Failed(RuntimeError):
    """Nothing that was given is to blame, as far as can be told: the message is one line, the exit code 1."""
