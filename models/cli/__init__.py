"""Option parsing, one-line errors and the table of commands for all programs, and the commands of `models`."""
