"""The bundle format: a folder that contains an encoder. This package reads and writes every part of it."""
