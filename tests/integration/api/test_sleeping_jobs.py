"""Each operation on a sleeping job works, or is refused with advice that works; stand-ins play the drivers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts
from keyscale.vocabulary import AttemptStage, DriverState
from tests.integration.api.test_lost_at_every_moment import Rehearsal

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

JOB = "/v1/jobs/flights"
OVER = ("COMPLETED", "FAILED", "CANCELLED", "ROLLED_BACK")


@dataclass(frozen=True, slots=True)
class Case:
    """An operation on a sleeping job.

    Attributes:
        path: Its route below the job's.
        body: Its request; None: the route takes none.
        status: What becomes of the job.
        drivers: The drivers that run the job until then.
        wakes: Whether the sleeping driver wakes.
    """

    path: str
    body: dict[str, Any] | None
    status: str
    drivers: int
    wakes: bool = False


CASES = {
    "stop": Case("/stop", {}, "STOPPED", 1),
    "cancel": Case("/cancel", {}, "STOPPED", 1),
    "drain": Case("/drain", {}, "FINISHED", 2, wakes=True),
    "savepoint": Case("/savepoint", {}, "RUNNING", 2, wakes=True),
    "checkpoint": Case("/checkpoint", {}, "RUNNING", 2, wakes=True),
    "restart": Case("/restart", {}, "RUNNING", 2),
    "rescale": Case("/rescale", {"parallelism": 4}, "RUNNING", 2),
    "rescale by a change": Case("", {"spec": {"parallelism": 4}}, "RUNNING", 2),
    "upgrade": Case("", {"spec": {"parameters": {"a": "b"}}, "plan_first": False}, "RUNNING", 2),
    "stateless upgrade": Case(
        "", {"spec": {"parameters": {"a": "b"}}, "plan_first": False, "upgrade_mode": "STATELESS"}, "RUNNING", 2
    ),
    "upgrade from last state": Case(
        "", {"spec": {"parameters": {"a": "b"}}, "plan_first": False, "upgrade_mode": "LAST_STATE"}, "RUNNING", 2
    ),
    "rollback": Case("/rollback", {"revision": 1, "state": "CURRENT", "plan_first": False}, "RUNNING", 2),
    "settings": Case("", {"spec": {"checkpoints": {"interval_ms": 7000}}}, "SLEEPING", 1),
    "settings that forbid the sleep": Case(
        "", {"spec": {"autoscaler": {"mode": "DISABLED"}}}, "RUNNING", 2, wakes=True
    ),
}


@pytest.fixture
def asleep(
    context: Context, client: httpx.Client, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rehearsal]:
    """A job of parallelism 2 that sleeps."""
    spec = {"parameters": {"a": "a"}, "autoscaler": {"mode": "ACTIVE", "sleep_after_ms": 60_000}}
    assert client.patch(JOB, json={"spec": spec}, headers={"If-Match": "*"}).is_success
    with closing(Rehearsal(context, monkeypatch, job)) as rehearsal:
        rehearsal.start()
        with context.sessions.begin() as session:
            active = attempts.of_stage(session, rehearsal.job_id, AttemptStage.ACTIVE)
            assert active is not None
            active.sleep_requested_at_ms = now_ms()
        rehearsal.until("a sleeping job", lambda: rehearsal.status() == "SLEEPING")
        yield rehearsal


def request(client: httpx.Client, case: Case) -> str:
    """Requests a case's operation; returns its id."""
    method, headers = ("POST", {}) if case.path else ("PATCH", {"If-Match": "*"})
    answer = client.request(method, JOB + case.path, json=case.body, headers=headers)
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


def end(rehearsal: Rehearsal, client: httpx.Client, case: Case, operation_id: str) -> dict[str, Any]:
    """Waits until a case's operation is over and the job is as expected; returns the operation."""
    shown: dict[str, Any] = {}

    def is_over() -> bool:
        shown.update(client.get(f"/v1/operations/{operation_id}").json())
        return shown["status"] in OVER

    rehearsal.until("the end of the operation", is_over)
    rehearsal.until(f"a job that is {case.status}", lambda: rehearsal.status() == case.status)
    for _ in range(3):
        rehearsal.turn()
    assert rehearsal.status() == case.status
    return shown


BRIEF = {"stop", "savepoint", "rescale", "settings"}
"""The cases in the default tier."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in BRIEF else [pytest.mark.exhaustive]) for name in CASES]
)
def test_an_operation_on_a_sleeping_job_ends_well_and_wakes_it_only_if_needed(
    client: httpx.Client, asleep: Rehearsal, name: str
) -> None:
    case, sleeper = CASES[name], asleep.world.drivers[asleep.old]
    done = end(asleep, client, case, request(client, case))
    assert (done["status"], done["failure"]) == ("COMPLETED", None)
    assert (len(asleep.world.drivers), sleeper.state is DriverState.WOKEN) == (case.drivers, case.wakes)
    shown = client.get(JOB).json()["status"]
    assert (shown["failure"], shown["restarts"]) == (None, 0)


def test_what_a_sleeping_job_refuses_is_possible_as_the_refusal_says(client: httpx.Client, asleep: Rehearsal) -> None:
    def refused(method: str, path: str, body: dict[str, Any] | None = None) -> str:
        answer = client.request(method, JOB + path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "JOB_STATUS_CONFLICT"), answer.text
        return str(answer.json()["detail"])

    value = {"operator": "count", "state": "count", "key": "1", "value": 2}
    assert "`./keyscale jobs restart flights --wait` wakes it now" in refused("POST", "/start")
    assert "`./keyscale jobs stop flights` stops it at once" in refused("POST", "/state-changes", {"changes": [value]})
    assert "`./keyscale jobs stop flights` stops it at once" in refused("DELETE", "")
    end(asleep, client, CASES["stop"], request(client, CASES["stop"]))
    assert client.delete(JOB).is_success


@pytest.mark.exhaustive
@pytest.mark.parametrize("turns", [0, 1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_an_operation_on_a_sleeping_job_ends_well_when_the_job_wakes_meanwhile(
    client: httpx.Client, asleep: Rehearsal, name: str, turns: int
) -> None:
    case, sleeper = CASES[name], asleep.world.drivers[asleep.old]
    operation_id = request(client, case)
    for _ in range(turns):
        asleep.turn()
    sleeper.has_input = True
    done = end(asleep, client, case if case.status != "SLEEPING" else CASES["savepoint"], operation_id)
    assert (done["status"], done["failure"]) == ("COMPLETED", None)
    assert client.get(JOB).json()["status"]["failure"] is None
