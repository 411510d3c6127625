"""Jobs that are rebuilt from their records in the object store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..shapes import JOB_ID_PATTERN, Answer, FailureAnswer, Request, example

JobIdText = Annotated[str, Field(pattern=JOB_ID_PATTERN)]


class RecoverRequest(Request):
    """The jobs to rebuild, after the database was lost."""

    model_config = example(dry_run=True) | {"extra": "forbid"}

    store_url: Annotated[str, Field(max_length=2000, json_schema_extra={"pattern": "^(file|s3)://"})] | None = Field(
        default=None, description="The store with the jobs' records. Default: the store of new jobs."
    )
    jobs: list[JobIdText] = Field(
        default_factory=list, max_length=1000, description="Ids of jobs. Default: every job with a record."
    )
    dry_run: bool = Field(default=False, description="Only check what would be rebuilt.")
    after: JobIdText | None = Field(default=None, description="The `next` of the answer before.")


class RecoveredJobAnswer(Answer):
    """The outcome of rebuilding one job."""

    id: str
    name: str | None = Field(description="None: the record cannot be read.")
    outcome: Literal["RECOVERED", "KNOWN", "REFUSED"] = Field(
        description="KNOWN: the database has the job already, and it is unchanged."
    )
    revision: int | None = Field(default=None, description="The revision that the job starts with.")
    attempt: int | None = Field(default=None, description="The newest attempt that is known from the store.")
    failure: FailureAnswer | None = Field(default=None, description="Why the job is refused.")


class RecoveredJobList(Answer):
    """A part of the jobs with records, ordered by id."""

    jobs: list[RecoveredJobAnswer]
    dry_run: bool
    next: str | None = Field(description="Send it as `after` for the rest of the jobs; None at the end.")
