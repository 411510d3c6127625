"""Lists among very much that belongs to others: they are right, page by page, and read nothing of that."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from bench.api_rows import fill
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import Artifact, Event
from keyscale.db.models.event import ACCESS_KINDS
from keyscale.db.repositories import artifacts, events, operations
from keyscale.db.repositories.events import EventFilter
from keyscale.db.repositories.pages import PageRequest
from keyscale.vocabulary import ArtifactKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

pytestmark = pytest.mark.real

JOBS = 12
SOME = JobScope(labels={"team": "a"})
ONE = JobScope(jobs=frozenset({"job-3"}))
NONE = JobScope(labels={"team": "nobody"})


@pytest.fixture
def engine(new_engine: Engine) -> Engine:
    """A new database: rows that earlier tests have deleted are counted when they are read."""
    return new_engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """Twelve jobs, of which some are of team a; each has three revisions, and some have events."""
    with Session(engine) as opened:
        fill(opened, jobs=JOBS, checkpoints=1, subtasks=1, attempts=1, events=0)
        inside = {"labels": '{"team": "a"}', "names": ["job-1", "job-3", "job-5", "job-7", "job-11"]}
        opened.execute(text("UPDATE jobs SET labels = cast(:labels AS jsonb) WHERE name = ANY(:names)"), inside)
        yield opened


def ids(session: Session) -> dict[str, str]:
    return {row.name: row.id for row in session.execute(text("SELECT name, id FROM jobs"))}


def add_events(session: Session, job_ids: list[str | None], kind: str = "JOB_RUNNING") -> None:
    row: dict[str, Any] = {"kind": kind, "actor": "system", "message": "x", "details": {}}
    session.add_all([Event(job_id=each, at_ms=number, **row) for number, each in enumerate(job_ids)])
    session.flush()


def walked(session: Session, limit: int, **options: Any) -> list[int]:
    """The ids of all events of a list, read page by page."""
    found: list[int] = []
    after = None
    while True:
        page = events.list_page(session, options.pop("job_id", None), PageRequest(limit, after), **options)
        assert len(page.rows) <= limit
        found += [event.id for event in page.rows]
        if page.next is None:
            return found
        after = page.next


def covered(session: Session, scope: JobScope) -> set[str]:
    rows = session.execute(text("SELECT id, name, labels FROM jobs"))
    return {row.id for row in rows if scope.covers(job_id=row.id, name=row.name, labels=row.labels)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
def test_the_events_of_a_scope_are_those_of_its_jobs_page_by_page(session: Session, seed: int, limit: int) -> None:
    choice = random.Random(seed)
    names = ids(session)
    quiet = choice.sample(sorted(names), 4)
    noisy: list[str | None] = [names[name] for name in names if name not in quiet]
    add_events(session, choice.choices([*noisy, None, "deleted"], k=60))
    add_events(session, [names[name] for name in quiet[:2]])
    add_events(session, [noisy[0]] * 30)
    everything = [(event.id, event.job_id) for event in session.query(Event).order_by(Event.id.desc())]
    for scope in (SOME, ONE, NONE):
        inside = covered(session, scope)
        assert walked(session, limit, scope=scope) == [each for each, job_id in everything if job_id in inside]
    for job_id in names.values():
        page = events.list_page(session, job_id, PageRequest(limit), scope=SOME)
        expected = [each for each, of in everything if of == job_id] if job_id in covered(session, SOME) else []
        assert [event.id for event in page.rows] == expected[:limit]


def test_only_administrators_see_events_about_access(session: Session) -> None:
    add_events(session, [None] * 3, "ARTIFACT_UPLOADED")
    for kind in ACCESS_KINDS:
        add_events(session, [None] * 3, kind)
    assert len(walked(session, 2, scope=EVERYTHING, with_access=True)) == 3 + 3 * len(ACCESS_KINDS)
    assert len(walked(session, 2, scope=EVERYTHING, with_access=False)) == 3


def rows_read(session: Session, table: str) -> int:
    read = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
    return int(session.execute(text(f"{read} WHERE relname = :table"), {"table": table}).scalar_one())


def test_a_list_of_events_reads_only_its_own_events_among_any_number(session: Session) -> None:
    names = ids(session)
    add_events(session, [names["job-3"]] * 20)
    add_events(session, [names["job-2"]] * 3000)
    add_events(session, [names["job-3"]] * 20, "JOB_STARTED")
    session.execute(text("UPDATE events SET actor = 'ada' WHERE kind = 'JOB_STARTED'"))
    add_events(session, [None] * 3000, "ACCESS_DENIED")
    session.execute(text("ANALYZE"))
    session.execute(text("SET LOCAL enable_seqscan = off"))  # the tables are small
    for options in (
        {"scope": SOME},
        {"scope": ONE},
        {"job_id": names["job-3"], "scope": ONE},
        {"job_id": names["job-3"]},
        {"with_access": False},
        {"chosen": EventFilter(with_refusals=False)},
        {"chosen": EventFilter(kinds=frozenset({"JOB_STARTED"}))},
        {"chosen": EventFilter(kinds=frozenset({"JOB_STARTED"})), "scope": SOME},
        {"chosen": EventFilter(actor="ada")},
    ):
        before = rows_read(session, "events")
        page = events.list_page(session, options.pop("job_id", None), PageRequest(10), **options)
        assert len(page.rows) == 10
        assert rows_read(session, "events") - before < 200, options


def test_the_marks_of_a_job_are_found_among_many_other_events(session: Session) -> None:
    names = ids(session)
    add_events(session, [names["job-3"]] * 20, "JOB_FAILED")
    add_events(session, [names["job-2"]] * 3000)
    session.execute(text("ANALYZE"))
    session.execute(text("SET LOCAL enable_seqscan = off"))
    before = rows_read(session, "events")
    found = events.between(session, names["job-3"], 5, 14, kinds=["JOB_FAILED"], limit=8)
    assert [event.at_ms for event in found] == list(range(14, 6, -1))
    assert rows_read(session, "events") - before < 200


def test_the_artifacts_of_a_scope_are_found_without_a_look_at_its_revisions_for_each(session: Session) -> None:
    session.add_all(
        Artifact(
            id=f"other-{number}",
            name=f"other-{number}",
            version=1,
            filename="x.py",
            kind=ArtifactKind.PYTHON,
            sha256="0" * 64,
            size_bytes=1,
            created_at_ms=number,
            uploaded_by="me" if number == 7 else "others",
        )
        for number in range(300)
    )
    session.flush()
    session.execute(
        text(
            "UPDATE revisions SET spec = jsonb_set(spec, '{libraries}', '[\"other-5\", \"package:x\"]')"
            " WHERE job_id = :id AND number = 2"
        ),
        {"id": ids(session)["job-3"]},
    )
    for scope, expected in ((SOME, {"artifact-0", "other-5", "other-7"}), (NONE, {"other-7"})):
        before = rows_read(session, "revisions")
        shown = {each.id for each in artifacts.list_page(session, PageRequest(), scope=scope, user_id="me").rows}
        assert shown == expected
        assert rows_read(session, "revisions") - before <= 4 * 3 * JOBS
        for number in range(10):
            seen = artifacts.is_visible(session, f"other-{number}", scope=scope, user_id="me")
            assert seen == (f"other-{number}" in expected)
        assert artifacts.is_visible(session, "artifact-0", scope=scope, user_id="me") == ("artifact-0" in expected)
        assert not artifacts.is_visible(session, "nothing", scope=scope, user_id="me")


def test_the_newest_change_to_each_revision_is_found_among_many(session: Session) -> None:
    job_id = ids(session)["job-3"]
    session.execute(
        text(
            """INSERT INTO operations (id, job_id, kind, status, phase, phases, from_revision, to_revision,
                                    upgrade_mode, from_parallelism, to_parallelism, old_attempt, requested_at_ms,
                                    ended_at_ms)
               SELECT 'u' || a, :job_id, 'UPGRADE', 'COMPLETED', 'VERIFY', '[]', 3, 1 + a % 2, 'SAVEPOINT', 1, 2, 1, a,
                      a
               FROM generate_series(1, 1000) a"""
        ),
        {"job_id": job_id},
    )
    session.execute(text("ANALYZE"))
    session.execute(text("SET LOCAL enable_seqscan = off"))
    before = rows_read(session, "operations")
    found = operations.last_to(session, job_id, [1, 3])
    assert {number: change.id for number, change in found.items()} == {1: "u1000"}
    assert rows_read(session, "operations") - before < 20
    assert operations.last_to(session, job_id, []) == {}


def test_a_savepoint_is_found_by_an_index(session: Session) -> None:
    session.execute(
        text(
            """INSERT INTO operations (id, job_id, old_attempt, kind, status, command_status, requested_at_ms)
               SELECT 'c' || a, :job_id, 1, 'CHECKPOINT', 'COMPLETED', 'COMPLETED', a FROM generate_series(1, 1000) a"""
        ),
        {"job_id": ids(session)["job-3"]},
    )
    session.execute(text("ANALYZE"))
    session.execute(text("SET LOCAL enable_seqscan = off"))
    before = rows_read(session, "operations")
    assert operations.find(session, "savepoint-3-2") is not None
    assert rows_read(session, "operations") - before <= 1
