"""What the CLI tells a user who got something wrong, or met a control plane that is not there."""

from __future__ import annotations

from typing import Any, ClassVar

import click


class CliError(click.ClickException):
    """Root of the CLI's own errors; `code`, `domain`, `retryable` and `advice` mean what they mean in every tree of errors."""

    code: ClassVar[str] = "CLI_ERROR"
    title: ClassVar[str] = "The command cannot be carried out"
    domain: ClassVar[str] = "user"
    retryable: ClassVar[bool] = False
    advice: ClassVar[str] = "See `./keyscale COMMAND --help`."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)

    def as_problem(self) -> dict[str, Any]:
        """The error in the shape in which the control plane sends its errors (problem+json)."""
        return {
            "code": self.code,
            "title": self.title,
            "detail": self.message,
            "advice": self.advice,
            "retryable": self.retryable,
        }


class ControlPlaneNotFoundError(CliError):
    """Neither flags, nor the environment, nor the home directory say where the control plane is."""

    code = "CLI_CONTROL_PLANE_NOT_FOUND"
    title = "There is no control plane to talk to"
    advice = (
        "Start one with `./keyscale up`, or name a running one by --url and --token (KEYSCALE_URL, KEYSCALE_TOKEN)."
    )


class ControlPlaneUnreachableError(CliError):
    """There is an address, and nothing answers there."""

    code = "CLI_CONTROL_PLANE_UNREACHABLE"
    title = "The control plane does not answer"
    domain = "external"
    retryable = True
    advice = "Start it with `./keyscale up`, or check the address (`./keyscale where`)."


class UnexpectedAnswerError(CliError):
    """Something answers that does not speak Keyscale's API."""

    code = "CLI_UNEXPECTED_ANSWER"
    title = "What answers is no control plane of this version"
    domain = "external"
    advice = "Check that the address is a Keyscale control plane's and of the same version (`./keyscale where`)."


class InvalidArgumentError(CliError):
    """An argument that the CLI itself can tell to be wrong."""

    code = "CLI_INVALID_ARGUMENT"
    title = "An argument is not valid"


class OperationFailedError(CliError):
    """The control plane carried out what was asked for, and it did not succeed."""

    code = "CLI_OPERATION_FAILED"
    title = "The operation has not succeeded"
    domain = "external"
    advice = "The message says why; `./keyscale jobs show JOB` and `./keyscale logs JOB` tell more."


class StartFailedError(CliError):
    """The control plane ended while it was starting."""

    code = "CLI_START_FAILED"
    title = "The control plane has not started"
    domain = "external"
    advice = "Its output is above. Another control plane on the same home or port is the usual reason."


class RefusedError(CliError):
    """The control plane's own refusal, passed on with its code and advice."""

    code = "CLI_REFUSED"
    title = "The control plane has refused"
    advice = "The control plane's own code and advice are shown with the error."

    def __init__(self, problem: dict[str, Any], http_status: int) -> None:
        """Keeps what the control plane said.

        Args:
            problem: The body of its problem+json answer.
            http_status: Of that answer.
        """
        super().__init__(str(problem.get("detail") or problem.get("title") or f"HTTP {http_status}"))
        self.problem = problem
        self.http_status = http_status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.http_status)

    def as_problem(self) -> dict[str, Any]:
        """The control plane's answer, as it came."""
        return self.problem
