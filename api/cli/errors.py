"""The errors of the command line."""

from __future__ import annotations

from typing import Any

import click

from keyscale.client.errors import ReportedError


class CliError(click.ClickException, ReportedError):
    """Root of the errors of the command line."""

    code = "CLI_ERROR"
    title = "The command cannot be carried out"
    domain = "user"
    advice = "See `./keyscale COMMAND --help`."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)


class RequirementsError(CliError):
    """pip finds no wheels that fit the platform and its packages."""

    code = "CLI_REQUIREMENTS_FAILED"
    title = "The requirements cannot be resolved into wheels"
    advice = (
        "pip's message is in `detail`. Ask for versions that go with the platform's packages, which `./keyscale "
        "artifacts platform` lists, and that are published as wheels; the file must have no hashes."
    )


class InvalidArgumentError(CliError):
    """An argument is wrong, as the CLI itself detects."""

    code = "CLI_INVALID_ARGUMENT"
    title = "An argument is not valid"


class JobFailedError(CliError):
    """A job that a command waits for has FAILED."""

    code = "CLI_JOB_FAILED"
    title = "The job has failed"
    domain = "external"
    advice = (
        "The error shows the job's failure, with its own advice. When the cause is removed, start the job again:"
        " `./keyscale jobs start JOB --wait`."
    )

    def __init__(self, message: str, failure: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.failure = failure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.failure)

    def as_problem(self) -> dict[str, Any]:
        """Returns the error in the form of problem+json, with the job's failure."""
        return {**super().as_problem(), "failure": self.failure}


class JobEndedError(CliError):
    """A job that a command waits for does not run.

    It cannot reach the status.
    """

    code = "CLI_JOB_ENDED"
    title = "The job does not run"
    advice = "`./keyscale jobs start JOB --wait` starts it and waits until it runs."


class StartFailedError(CliError):
    """The control plane ended while it was starting."""

    code = "CLI_START_FAILED"
    title = "The control plane did not start"
    domain = "external"
    advice = "Its output is above. The usual reason is another control plane on the same home or port."
