"""Commands of the package `serving`. Each command has its own module."""
