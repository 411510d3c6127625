"""What a JSON Schema cannot say about the requests that the API refuses, rule by rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

if TYPE_CHECKING:
    from schemathesis import Case, CheckContext, Response

DEPENDS_ON = {
    "ARTIFACT_INVALID": "the name and the bytes of a file",
    "ARTIFACT_NOT_RUNNABLE": "the bytes of a file",
    "CURSOR_INVALID": "an earlier answer of the same list",
    "JOB_LIMIT_EXCEEDED": "the administrator's limits for jobs",
    "LIBRARY_INVALID": "the packages of the platform",
    "PARALLELISM_OUT_OF_RANGE": "the max parallelism of the job",
    "PROGRAM_UNLOADABLE": "the job's program",
    "RESTORE_SOURCE_INVALID": "the snapshots of jobs",
    "SECRET_UNKNOWN": "the secrets of the platform",
    "SETTING_FIXED": "the settings of the job",
    "SPARK_CONF_NOT_ALLOWED": "the administrator's list of allowed settings",
    "STATE_CHANGE_REFUSED": "the states of the job's operators",
    "STATE_READ_REFUSED": "the states of the job's operators",
    "SUBSCRIPTION_REFUSED": "the mail server, and what a target's name resolves to",
}
"""Refusals of well-formed requests, and what they depend on."""

RULES = {
    "from_ms: it is after to_ms, or after the present time": "two parameters",
    "parallelism_max is less than parallelism_min": "two fields",
    "max_backoff_ms is less than initial_backoff_ms": "two fields",
    "body.spec.restart.": "a patch of a restart strategy, and the strategy that the job has",
    "store_url: ": "what a URL is",
    "It holds a NUL": "a value of any form",
}
"""Rules about what a JSON Schema does not compare, by a part of the refusal."""


@schemathesis.check
def valid_requests_are_accepted(ctx: CheckContext, response: Response, case: Case) -> bool | None:
    """Accepts a refusal only for a reason that the document cannot give."""
    if response.status_code == 422 and is_beyond_a_schema(response.json()):
        return None
    return positive_data_acceptance(ctx, response, case)


def is_beyond_a_schema(problem: dict[str, Any]) -> bool:
    """Returns whether a JSON Schema cannot describe why a request was refused."""
    reasons = [f"{each['field']} {each['message']}" for each in problem.get("errors", ())] or [problem["detail"]]
    return problem["code"] in DEPENDS_ON or all(any(rule in reason for rule in RULES) for reason in reasons)
