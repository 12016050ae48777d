"""The bundle: an encoder as a folder, and every part of it."""
