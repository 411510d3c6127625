"""Reads cost the same however much there is: a constant number of statements, pages by key, and no cross reads."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from bench.api_rows import fill
from keyscale.db.repositories import overviews
from tests.integration.api.conftest import rows_read
from tests.support.control_plane.served_routes import api_routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from fastapi import FastAPI

    from keyscale.api.control_plane.context import Context
    from keyscale.db.repositories.overviews import JobOverview

pytestmark = pytest.mark.real

STATEMENTS_MAX = 15
MISSING = ("/logs", "/verification", "/{subscription_id}", "/{subscription_id}/deliveries", "/{diagnostic_id}")
STATEMENTS_OF_BUNDLE_MAX = 35  # a support bundle holds the answers of many reads
LISTS = {
    "/v1/jobs": ("jobs", "id"),
    "/v1/artifacts": ("artifacts", "id"),
    "/v1/events": ("events", "id"),
    "/v1/jobs/{job_id}/events": ("events", "id"),
    "/v1/jobs/{job_id}/attempts": ("attempts", "number"),
    "/v1/jobs/{job_id}/checkpoints": ("history", "id"),
    "/v1/jobs/{job_id}/savepoints": ("savepoints", "checkpoint_id"),
    "/v1/jobs/{job_id}/operations": ("operations", "id"),
    "/v1/jobs/{job_id}/revisions": ("revisions", "number"),
    "/v1/jobs/{job_id}/exceptions": ("exceptions", "id"),
}
SAVEPOINTS = """
INSERT INTO checkpoints (job_id, checkpoint_id, attempt, status, is_savepoint, savepoint_id, trigger_timestamp,
    end_to_end_duration, checkpointed_size, state_size, processed_records, external_path, num_subtasks,
    num_acknowledged_subtasks)
SELECT md5('job' || j), 1000 + a, 1, 'COMPLETED', true, 'savepoint-' || j || '-' || a, 1, 1, 1, 1, 1, 'file:///s', 1, 1
FROM generate_series(7, 7) j, generate_series(1, 6) a
"""
INDEXED = {
    "jobs ORDER BY created_at_ms DESC, id DESC": "ix_jobs_created_at_ms",
    "events WHERE job_id = 'x' ORDER BY id DESC": "ix_events_job",
    "operations WHERE job_id = 'x' ORDER BY requested_at_ms DESC, id DESC": "ix_operations_requested_at_ms",
    "checkpoints WHERE external_path = 'x' AND discard_requested_at_ms IS NOT NULL": "ix_checkpoints_discarded_path",
    "checkpoints WHERE discard_requested_at_ms IS NOT NULL AND objects_deleted_at_ms IS NULL"
    " ORDER BY discard_requested_at_ms": "ix_checkpoints_discarded",
}


@contextmanager
def statements(context: Context) -> Iterator[list[str]]:
    """Counts the statements that the control plane sends to the database."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(context.engine, "before_cursor_execute", note)
    yield sent
    event.remove(context.engine, "before_cursor_execute", note)


@pytest.fixture
def filled(context: Context, client: httpx.Client) -> httpx.Client:
    """A client of a control plane with 40 jobs that have a history."""
    with Session(context.engine) as session, session.begin():
        fill(session, jobs=40, checkpoints=30, subtasks=2, attempts=5, events=20)
        session.execute(text(SAVEPOINTS))
    return client


def reads(app: FastAPI) -> list[str]:
    paths = [path for method, path in api_routes(app) if method == "GET" and path not in {"/", "/health"}]
    # Streams share their looks at the database, which test_streams.py counts; the state is read from the store.
    others = ("/stream", "/state")
    return sorted(
        path
        for path in set(paths)
        if not path.startswith(("/driver", "/v1/openapi")) and not any(map(path.count, others))
    )


def test_every_read_takes_a_constant_number_of_statements(app: FastAPI, context: Context, filled: httpx.Client) -> None:
    context.settings.token_file.write_text("the-admins")  # of which the home's proof is made
    few, many = ({"limit": limit, "to": 1, "parallelism": 2} for limit in (2, 40))
    names = {"job_id": "job-7", "checkpoint_id": "7", "artifact_id": "artifact-0", "savepoint_id": "savepoint-7-1",
             "id": "rescale-7-1", "operation_id": "savepoint-7-1", "token_id": "x", "subscription_id": "x",
             "diagnostic_id": "x", "revision": "1"}  # fmt: skip
    described = filled.get("/v1/openapi.json").json()["paths"]
    counted = 0
    for route in reads(app):
        path = route.format(**names)
        expected_status = 404 if route.endswith(MISSING) else 200
        known = {parameter["name"] for parameter in described.get(route, {}).get("get", {}).get("parameters", [])}
        counts = []
        for limits in (few, many):
            with statements(context) as sent:
                answer = filled.get(path, params={name: limits[name] for name in limits.keys() & known})
            assert answer.status_code == expected_status, (path, answer.text)
            counts.append(len(sent))
        statements_max = STATEMENTS_OF_BUNDLE_MAX if route.endswith("/bundle") else STATEMENTS_MAX
        assert counts[0] == counts[1] <= statements_max, (path, counts, sent)
        counted += 1
    assert counted > 20


@pytest.mark.parametrize(
    ("path", "statements_max"),
    [("/v1/jobs", 3), ("/v1/jobs/job-7", 2), ("/v1/jobs/job-7/checkpoints", 8), ("/v1/jobs/job-7/checkpoints/7", 4)],
)
def test_the_reads_that_pages_repeat_take_few_statements(
    context: Context, filled: httpx.Client, path: str, statements_max: int
) -> None:
    """Each costs the process of the control plane half a millisecond. One is for the token."""
    with statements(context) as sent:
        assert filled.get(path).status_code == 200
    assert len(sent) <= statements_max, sent


def test_the_list_of_jobs_says_the_same_as_each_job_but_for_what_its_driver_measures(filled: httpx.Client) -> None:
    """The metrics of an attempt have a row per operator and subtask, most of an answer."""
    jobs = filled.get("/v1/jobs").json()["jobs"][:3]
    assert jobs
    for listed in jobs:
        shown = filled.get(f"/v1/jobs/{listed['id']}").json()
        assert shown["status"]["attempt"].pop("metrics")["operators"]
        assert listed == shown


def test_a_job_that_is_deleted_while_the_list_is_read_is_left_out(
    context: Context, filled: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = overviews.of_jobs

    def read_later(session: Session, job_ids: list[str]) -> dict[str, JobOverview]:
        with context.sessions.begin() as other:
            other.execute(text("DELETE FROM jobs WHERE name = :name"), {"name": doomed})
        return read(session, job_ids)

    monkeypatch.setattr(overviews, "of_jobs", read_later)
    doomed = "job-7"
    names = {job["name"] for job in filled.get("/v1/jobs").json()["jobs"]}
    assert names == {f"job-{number}" for number in range(1, 41)} - {doomed}


@pytest.mark.parametrize("route", LISTS)
def test_a_list_is_read_page_by_page_without_gaps_or_repetitions(filled: httpx.Client, route: str) -> None:
    path, (field, key) = route.format(job_id="job-7"), LISTS[route]
    whole = filled.get(path, params={"limit": 1000}).json()
    wanted = [row[key] for row in whole[field]]
    assert whole["next"] is None
    assert len(wanted) == len(set(wanted)) > {"/v1/artifacts": 1, "/v1/jobs/{job_id}/revisions": 2}.get(route, 4)
    seen: list[Any] = []
    after = None
    for _ in range(len(wanted) + 1):
        answer = filled.get(path, params={"limit": 3} | ({"after": after} if after else {})).json()
        seen += [row[key] for row in answer[field]]
        after = answer["next"]
        if after is None:
            break
    assert seen == wanted


def test_checkpoints_are_chosen_by_status(filled: httpx.Client) -> None:
    def found(*statuses: str) -> set[str]:
        answer = filled.get("/v1/jobs/job-7/checkpoints", params={"status": statuses, "limit": 1000}).json()
        assert answer["counts"]["total"] > 0
        return {each["status"] for each in answer["history"]}

    assert found() > found("FAILED", "COMPLETED") == {"FAILED", "COMPLETED"}
    assert filled.get("/v1/jobs/job-7/checkpoints", params={"status": "LATE"}).status_code == 422


def test_a_cursor_of_another_list_or_a_made_up_one_is_refused(filled: httpx.Client) -> None:
    cursor = filled.get("/v1/jobs", params={"limit": 1}).json()["next"]
    assert cursor
    for path in ("/v1/events", "/v1/jobs/job-7/checkpoints"):
        answer = filled.get(path, params={"after": cursor})
        assert (answer.status_code, answer.json()["code"]) == (422, "CURSOR_INVALID"), path
    for made_up in ("", "x", "%00", "W10", "WzFd", "bnVsbA", "W251bGwsbnVsbF0", "é", "W1siYSJdLCJiIl0"):
        answer = filled.get("/v1/jobs", params={"after": made_up})
        assert (answer.status_code, answer.json()["code"]) == (422, "CURSOR_INVALID"), made_up


@pytest.mark.usefixtures("filled")
def test_lists_are_read_from_indices_that_have_their_order(context: Context) -> None:
    with context.engine.connect() as connection:
        connection.execute(text("SET enable_seqscan = off"))
        connection.execute(text("ANALYZE"))
        for query, index in INDEXED.items():
            plan = "\n".join(connection.scalars(text(f"EXPLAIN SELECT * FROM {query} LIMIT 3")))  # noqa: S608 - constants
            assert index in plan, plan
            assert "Sort" not in plan, plan


def test_an_overview_reads_one_attempt_of_a_job_however_many_there_were(context: Context, filled: httpx.Client) -> None:
    ids = [job["id"] for job in filled.get("/v1/jobs").json()["jobs"]]
    with Session(context.engine) as session:
        session.execute(text("SET LOCAL enable_seqscan = off"))  # the tables are small
        session.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))  # as of a statement that comes often
        before = rows_read(session, "attempts")
        assert len(overviews.of_jobs(session, ids)) == len(ids)
        # One is read for its number, and again for its columns.
        assert rows_read(session, "attempts") - before <= 2 * len(ids)
