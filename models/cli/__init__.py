"""Parsing of options, one-line errors and the table of commands, for every program; and the commands of `models`."""
