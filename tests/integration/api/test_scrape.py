"""GET /metrics on a real database: scoped by the token, and of few statements."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event, text

from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import Attempt, Operation
from keyscale.db.repositories import scrapes
from keyscale.vocabulary import AttemptStage, OperationKind, OperationStatus, Role
from tests.integration.api.conftest import add_token, rows_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database


@contextmanager
def statements_of(context: Context) -> Iterator[list[str]]:
    sent: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement)

    event.listen(context.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(context.engine, "before_cursor_execute", note)


def test_a_token_gets_the_metrics_of_its_jobs_and_one_for_all_jobs_those_of_the_replica_too(
    client: httpx.Client, anonymous: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    with context.sessions.begin() as session:
        add_token(session, "the-orders", Role.VIEWER, JobScope(jobs=frozenset({job["name"]})))
        add_token(session, "the-others", Role.VIEWER, JobScope(labels={"team": "other"}))
    assert anonymous.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    client.get("/v1/jobs/unknown")
    whole = client.get("/metrics")
    assert whole.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        sample.name: sample
        for family in text_string_to_metric_families(whole.text)
        for sample in family.samples
        if sample.labels.get("code") in {None, "JOB_NOT_FOUND"} and sample.labels.get("route") in {None, "/metrics"}
    }
    assert found["keyscale_job_wanted"].labels == {"job_id": job["id"], "job_name": job["name"]}
    assert found["keyscale_errors_total"].value == 1
    assert found["keyscale_database_up"].value == found["keyscale_store_up"].value == 1
    assert 'route="/v1/jobs/{job_id}",status="404"' in whole.text
    own = anonymous.get("/metrics", headers={"Authorization": "Bearer the-orders"}).text
    assert f'keyscale_job_status{{job_id="{job["id"]}"' in own
    assert "keyscale_requests_total" not in own
    assert anonymous.get("/metrics", headers={"Authorization": "Bearer the-others"}).text == ""


@pytest.mark.real
def test_a_scrape_takes_as_many_statements_for_many_jobs_as_for_one(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    client.get("/metrics")
    with statements_of(context) as of_one:
        client.get("/metrics")
    for name in ("second", "third"):
        made = client.post("/v1/jobs", json={"name": name, "spec": {"artifact_id": job["spec"]["artifact_id"]}})
        assert made.status_code == 201, made.text
    with statements_of(context) as of_three:
        assert client.get("/metrics").text.count("keyscale_job_wanted{") == 3
    assert len(of_three) == len(of_one) <= 5


@pytest.mark.real
def test_a_scrape_reads_only_operations_with_a_downtime(context: Context, job: dict[str, Any]) -> None:
    def ended(name: str, **times: int) -> Operation:
        return Operation(
            id=name, job_id=job["id"], kind=OperationKind.RESTART, status=OperationStatus.COMPLETED, **times
        )

    with context.sessions.begin() as session:
        session.add(ended("restart", requested_at_ms=3, stopped_at_ms=10, resumed_at_ms=25))
        session.add_all(ended(f"of-nothing-{at_ms}", requested_at_ms=at_ms) for at_ms in range(4, 54))
    with context.sessions() as session:
        session.execute(text("SET LOCAL enable_seqscan = off"))  # the table is small
        before = rows_read(session, "operations")
        [facts] = scrapes.of_scope(session, EVERYTHING, limit=9)
        assert facts.downtime_ms == 15
        assert rows_read(session, "operations") - before == 1


@pytest.mark.real
def test_a_part_of_the_last_report_is_read_where_it_suffices(context: Context, job: dict[str, Any]) -> None:
    reported = {"failures": {"times_ms": [1]}, "batches": 9}
    with context.sessions.begin() as session:
        at = {"number": 1, "stage": AttemptStage.ACTIVE, "cause": "start", "revision": 1, "parallelism": 2}
        attempt = Attempt(job_id=job["id"], created_at_ms=1, **at)
        session.add(attempt)
        session.flush()
        attempt.metrics = reported
    with context.sessions() as session:
        [whole] = scrapes.of_scope(session, EVERYTHING, limit=9)
        [part] = scrapes.of_scope(session, EVERYTHING, limit=9, report=("failures", "sink_outage"))
    assert whole.metrics == reported
    assert part == whole._replace(metrics={"failures": reported["failures"], "sink_outage": None})
