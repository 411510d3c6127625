"""The errors of the command line."""

from __future__ import annotations

from typing import Any, ClassVar

import click

from keyscale.errors import Domain, KeyscaleError


class CliError(click.ClickException, KeyscaleError):
    """Root of the errors of the command line."""

    code = "CLI_ERROR"
    title: ClassVar[str] = "The command cannot be carried out"
    domain: ClassVar[Domain] = "user"
    advice = "See `./keyscale COMMAND --help`."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)

    def as_problem(self) -> dict[str, Any]:
        """Returns the error in the control plane's form (problem+json)."""
        return {
            "code": self.code,
            "title": self.title,
            "detail": self.message,
            "advice": self.advice,
            "retryable": self.retryable,
        }


class ControlPlaneNotFoundError(CliError):
    """Options, environment and home directory name no control plane."""

    code = "CLI_CONTROL_PLANE_NOT_FOUND"
    title = "No control plane is known"
    advice = (
        "Start one with `./keyscale up`, or name a running control plane by --url and --token (KEYSCALE_URL,"
        " KEYSCALE_TOKEN)."
    )


class RequirementsError(CliError):
    """pip finds no wheels that fit the platform and its packages."""

    code = "CLI_REQUIREMENTS_FAILED"
    title = "The requirements cannot be resolved into wheels"
    advice = (
        "pip's message is in `detail`. Ask for versions that go with the platform's packages, which `./keyscale "
        "artifacts platform` lists, and that are published as wheels; the file must have no hashes."
    )


class ControlPlaneUnreachableError(CliError):
    """Nothing answers at the address of the control plane."""

    code = "CLI_CONTROL_PLANE_UNREACHABLE"
    title = "The control plane does not answer"
    domain = "external"
    retryable = True
    advice = "Start it with `./keyscale up`, or check the address (`./keyscale where`)."


class ControlPlaneNotProvenError(CliError):
    """Another program answers at the address in the home directory.

    It gets no token.
    """

    code = "CLI_CONTROL_PLANE_NOT_PROVEN"
    title = "Another program answers at the control plane's address"
    domain = "external"
    advice = (
        "Start the control plane of this home with `./keyscale up`; restart a control plane of an earlier version. If"
        " you trust the address, name it with --url."
    )


class UnexpectedAnswerError(CliError):
    """The server at the address does not speak Keyscale's API."""

    code = "CLI_UNEXPECTED_ANSWER"
    title = "The server is not a control plane of this version"
    domain = "external"
    advice = "Check that a Keyscale control plane of the same version is at the address (`./keyscale where`)."


class InvalidArgumentError(CliError):
    """An argument is wrong, as the CLI itself detects."""

    code = "CLI_INVALID_ARGUMENT"
    title = "An argument is not valid"


class OperationFailedError(CliError):
    """The control plane accepted the operation, but the operation failed."""

    code = "CLI_OPERATION_FAILED"
    title = "The operation failed"
    domain = "external"
    advice = "The message gives the reason; see also `./keyscale jobs show JOB` and `./keyscale logs JOB`."


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


class WaitTimeoutError(CliError):
    """A command's timeout passed before the status or end was reached."""

    code = "CLI_WAIT_TIMED_OUT"
    title = "The time to wait is over"
    domain = "external"
    retryable = True
    exit_code = 3
    advice = "Nothing was changed. Wait again with a longer --timeout; `./keyscale jobs show JOB` shows the job."


class StartFailedError(CliError):
    """The control plane ended while it was starting."""

    code = "CLI_START_FAILED"
    title = "The control plane did not start"
    domain = "external"
    advice = "Its output is above. The usual reason is another control plane on the same home or port."


class RefusedError(CliError):
    """The control plane refused the request.

    Its own code and advice are shown.
    """

    code = "CLI_REFUSED"
    title = "The control plane refused the request"
    advice = "Follow the control plane's own advice, which is shown with the error."

    def __init__(self, problem: dict[str, Any], http_status: int) -> None:
        """Makes the error of a refusal.

        Args:
            problem: The body of the problem+json answer.
            http_status: The HTTP status of that answer.
        """
        super().__init__(str(problem.get("detail") or problem.get("title") or f"HTTP {http_status}"))
        self.problem = problem
        self.http_status = http_status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.http_status)

    def as_problem(self) -> dict[str, Any]:
        """Returns the control plane's answer, unchanged."""
        return self.problem
