"""Entry point of `python -m isosphere`."""

from isosphere.command import program

program()
