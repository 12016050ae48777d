"""Contents of the corpora in tests of the web page."""

from __future__ import annotations

import csv
import io
import itertools

import httpx

TOPICS = {
    "heating": "boiler radiator chimney thermostat furnace",
    "garden": "hedge lawn fence orchard greenhouse",
    "music": "guitar choir violin orchestra drum",
    "travel": "ferry railway passport harbour luggage",
}
DEEDS = (
    "was repaired, is painted, needs a part, was sold, is checked, makes a noise, has a new owner, stands idle".split(
        ", "
    )
)
EVIL = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script><svg onload=alert(3)>${alert(4)}{{5*5}}"
"""Text that shows a dialog, an image or 25 if it is interpreted as HTML or as a template."""


def rows(count: int) -> list[dict[str, str]]:
    """Return numbered sentences about four topics."""
    things = itertools.cycle((topic, thing) for topic, words in TOPICS.items() for thing in words.split())
    return [
        {
            "id": f"r{i}",
            "text": f"The {thing} of house {i} {DEEDS[(i // 20) % len(DEEDS)]}.",
            "topic": topic,
            "year": str(2000 + i % 25),
        }
        for i, (topic, thing) in zip(range(count), things, strict=False)
    ]


def as_csv(given: list[dict[str, str]]) -> bytes:
    """Return rows as CSV with a header."""
    file = io.StringIO(newline="")
    table = csv.DictWriter(file, fieldnames=list(given[0]))
    table.writeheader()
    table.writerows(given)
    return file.getvalue().encode()


def fill(client: httpx.Client, corpus: str, given: list[dict[str, str]]) -> None:
    """Upload rows to a corpus, with other columns as metadata, and return when they are searchable."""
    client.put(f"/corpora/{corpus}", json={"description": f"{len(given)} sentences"}).raise_for_status()
    documents = [{"id": row.pop("id"), "text": row.pop("text"), "metadata": row} for row in map(dict, given)]
    for start in range(0, len(documents), 256):
        some = {"documents": documents[start : start + 256]}
        client.post(f"/corpora/{corpus}/documents", json=some).raise_for_status()
