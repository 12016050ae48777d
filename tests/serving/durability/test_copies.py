"""What the trials say of a restored copy that is not there."""

from __future__ import annotations

import httpx
import pytest

from tests.serving.durability.chores import Copies
from tests.serving.durability.history import Verdict


def nothing(request: httpx.Request) -> httpx.Response:
    """A server without corpora, and without snapshots of any."""
    return httpx.Response(200, json={"corpora": [], "snapshots": []})


@pytest.mark.parametrize(("acknowledged", "lost"), [(False, []), (True, ["lost: corpus copy"])])
def test_only_a_restore_that_was_acknowledged_can_be_lost(acknowledged: bool, lost: list[str]) -> None:
    """The first may be cut off by a kill: then it was asked for, and there need be nothing."""
    copies, verdict = Copies([], restored=["asked-for"], there=acknowledged), Verdict()
    with httpx.Client(transport=httpx.MockTransport(nothing), base_url="http://server") as client:
        copies.check(client, verdict)
    assert verdict.examples == lost
