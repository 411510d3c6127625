"""The history of a job's exceptions."""

from __future__ import annotations

import re

from pydantic import Field, computed_field

from ...shapes import Answer, ListAnswer

_LAST_LINE = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")


class JobExceptionAnswer(Answer):
    """A failure of a job's run."""

    id: int
    at_ms: int
    attempt: int
    code: str = Field(description="The code of the error, as in docs/errors.md.")
    message: str
    traceback: str | None = Field(description="Traceback of the job's own code; null if the platform failed.")
    operator_uid: str | None
    subtask: int | None

    @computed_field(description="The class of the exception of the job's code; null if the platform failed.")  # type: ignore[prop-decorator]
    @property
    def type(self) -> str | None:
        return type_of(self.traceback)


class JobExceptionList(ListAnswer):
    """A job's newest 500 exceptions, newest first."""

    exceptions: list[JobExceptionAnswer]


def type_of(traceback: str | None) -> str | None:
    """Returns the class of the exception that a traceback ends with."""
    for line in reversed((traceback or "").splitlines()):  # the message may have several lines
        if line and not line[0].isspace() and (found := _LAST_LINE.match(line)) and "." not in found[1][-1:]:
            return found[1]
    return None
