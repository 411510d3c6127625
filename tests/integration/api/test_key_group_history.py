"""The key groups of a job are shown over its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_plane.snapshots import BEGUN_MS, Snapshots

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database


def test_the_key_groups_of_each_operator_are_shown_the_oldest_first(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    def shown(**query: str) -> Any:
        answer = client.get("/v1/jobs/flights/key-groups", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert shown() == {"max_parallelism": 16, "group_width": 1, "operators": []}
    made = Snapshots(context.sessions, job["id"])
    made.take(1, {}, key_group_bytes=range(16))
    made.take(2, {}, key_group_bytes=range(16, 32))
    made.take(3, {}, operator_uid="map")
    made.take(4, {}, operator_uid="names", key_group_bytes=[1] * 16)
    names, totals = shown()["operators"]
    assert (names["uid"], names["at_ms"]) == ("names", [BEGUN_MS + 4000])
    assert totals["at_ms"] == [BEGUN_MS + 1000, BEGUN_MS + 2000]
    assert totals["bytes"] == [list(range(16)), list(range(16, 32))]
    assert totals["subtasks"] == [{"index": 0, "key_group_start": 0, "key_group_end": 15}]
    assert [one["uid"] for one in shown(operator="totals")["operators"]] == ["totals"]
    assert shown(operator="nobody")["operators"] == []
