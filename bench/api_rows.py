"""Rows of a long-running control plane's database, written by the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_DAY_MS = 86_400_000

_STATEMENTS = (
    """INSERT INTO artifacts (id, name, version, filename, kind, sha256, size_bytes, created_at_ms)
       SELECT 'artifact-' || a, 'program', a + 1, 'program.py', 'PYTHON', repeat('0', 64), 9, a
       FROM generate_series(0, 1) a""",
    """INSERT INTO jobs (id, name, max_parallelism, hash_id, store_url, desired, status, consecutive_failures, restarts,
                          next_start_at_ms, created_at_ms, started_at_ms, labels)
       SELECT md5('job' || j), 'job-' || j, 128, 'spark', 'file:///store', 'STOPPED', 'STOPPED', 0, 0, 0, :now - j,
              :now - j, '{}'
       FROM generate_series(1, :jobs) j""",
    """INSERT INTO revisions (job_id, number, spec, created_at_ms)
       SELECT md5('job' || j), r,
              jsonb_build_object('artifact_id', 'artifact-0', 'libraries', jsonb_build_array(), 'parallelism', 2,
                                 'parameters', jsonb_build_object('input', '/data/in'),
                                 'checkpoints', jsonb_build_object('timeout_ms', 600000)),
              :now - j
       FROM generate_series(1, :jobs) j, generate_series(1, 3) r""",
    """INSERT INTO attempts (job_id, number, stage, cause, parallelism, restore_from, created_at_ms, launched_at_ms,
                              attached_at_ms, ended_at_ms, reaped, driver_state, restored_at_ms)
       SELECT md5('job' || j), a, 'ENDED', 'recover', 2,
              'file:///store/' || j || '/chk-' || a || '/manifest.json', :now - 1000 + a, 1, 1, :now, true, 'RUNNING',
              :now
       FROM generate_series(1, :jobs) j, generate_series(1, :attempts) a""",
    """INSERT INTO heartbeats (job_id, attempt, at_ms, metrics)
       SELECT md5('job' || j), a, :now,
              '{"batches": 100, "input_records": 100000, "operators": [{"uid": "totals", "read_records": 100000,
                "subtasks": [{"index": 0, "read_records": 10}, {"index": 1, "read_records": 20}]}]}'
       FROM generate_series(1, :jobs) j, generate_series(1, :attempts) a""",
    """INSERT INTO checkpoints (job_id, checkpoint_id, attempt, status, is_savepoint, savepoint_id, trigger_timestamp,
                                 latest_ack_timestamp, end_to_end_duration, checkpointed_size, state_size,
                                 processed_records, external_path, batch_id, num_subtasks, num_acknowledged_subtasks)
       SELECT md5('job' || j), c, 1,
              CASE WHEN c > :checkpoints - 3 OR c % 100 = 0 THEN 'COMPLETED' WHEN c % 17 = 0 THEN 'FAILED'
                   ELSE 'SUBSUMED' END,
              c % 100 = 0, CASE WHEN c % 100 = 0 THEN 's' || c END, :now - (:checkpoints - c) * 10000,
              :now - (:checkpoints - c) * 10000 + 200, 200 + c % 50, c % 1000, 100000 + c, 1000,
              'file:///store/' || j || '/chk-' || c || '/manifest.json', c, :subtasks, :subtasks
       FROM generate_series(1, :jobs) j, generate_series(1, :checkpoints) c""",
    """INSERT INTO checkpoint_subtasks (job_id, checkpoint_id, operator_uid, subtask, status, key_group_start,
                                         key_group_end, ack_timestamp, end_to_end_duration, start_delay, sync_duration,
                                         async_duration, checkpointed_size, state_size, files)
       SELECT md5('job' || j), c, 'totals', s, 'COMPLETED', 0, 63, :now, 200, 1, 5, 150, 100, 50000, 3
       FROM generate_series(1, :jobs) j, generate_series(greatest(1, :checkpoints - 99), :checkpoints) c,
            generate_series(0, :subtasks - 1) s""",
    """INSERT INTO operations (id, job_id, old_attempt, kind, status, command_status, location, checkpoint_id,
                                requested_at_ms, ended_at_ms)
       SELECT 'savepoint-' || j || '-' || a, md5('job' || j), 1, 'SAVEPOINT', 'COMPLETED', 'COMPLETED',
              'file:///store/s', 1, :now - a, :now
       FROM generate_series(1, :jobs) j, generate_series(1, 6) a""",
    """INSERT INTO operations (id, job_id, kind, status, phase, phases, from_revision, to_revision, upgrade_mode,
                             from_parallelism, to_parallelism, old_attempt, requested_at_ms, ended_at_ms)
       SELECT 'rescale-' || j || '-' || a, md5('job' || j), 'RESCALE', 'COMPLETED', 'VERIFY', '[]', 1, 2, 'SAVEPOINT',
              1, 2, 1, :now - a, :now
       FROM generate_series(1, :jobs) j, generate_series(1, 6) a""",
    """INSERT INTO events (job_id, at_ms, kind, actor, message, details)
       SELECT md5('job' || j), :now - e, 'JOB_RUNNING', 'system', 'attempt 1 runs the job', '{"attempt": 1}'
       FROM generate_series(1, :events) e, generate_series(1, :jobs) j""",
    """INSERT INTO exceptions (job_id, attempt, at_ms, code, message)
       SELECT md5('job' || j), 1, :now - e, 'USER_CODE_FAILED', 'division by zero'
       FROM generate_series(1, :attempts) e, generate_series(1, :jobs) j""",
)


def fill(
    session: Session,
    *,
    jobs: int,
    checkpoints: int,
    subtasks: int,
    attempts: int,
    events: int,
    now_ms: int = 40 * _DAY_MS,
) -> None:
    """Writes stopped jobs with a history.

    Args:
        session: The transaction.
        jobs: The number of jobs, called `job-1` and so on.
        checkpoints: The number of checkpoints per job; every hundredth is a savepoint.
        subtasks: The number of subtasks of each of a job's newest 100 checkpoints.
        attempts: The number of attempts per job.
        events: The number of events per job.
        now_ms: The time of the newest rows.
    """
    sizes = {"jobs": jobs, "checkpoints": checkpoints, "subtasks": subtasks, "attempts": attempts, "events": events}
    for statement in _STATEMENTS:
        session.execute(text(statement), {**sizes, "now": now_ms})
