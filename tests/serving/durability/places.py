"""Named places where the server can be killed. A test compares this list with the calls in `serving/`."""

from __future__ import annotations

STORE = (
    "store.before-commit",
    "store.after-commit",
    "store.before-create",
    "store.after-create",
    "store.before-copy",
    "store.after-copy",
    "store.before-adopt",
    "store.after-adopt",
    "store.before-swap",
    "store.after-swap",
    "store.before-drop",
    "store.after-drop",
)
INDEX = (
    "index.before-save",
    "index.before-manifest",
    "index.after-manifest",
    "index.before-bury",
    "index.compaction",
)
JOBS = (
    "jobs.before-spool",
    "jobs.after-spool",
    "jobs.before-checkpoint",
    "jobs.after-checkpoint",
    "jobs.finished",
)
SNAPSHOTS = (
    "snapshots.before-pack",
    "snapshots.after-pack",
    "snapshots.before-restore",
    "snapshots.after-restore",
)
PLACES = (*STORE, *INDEX, *JOBS, *SNAPSHOTS)
