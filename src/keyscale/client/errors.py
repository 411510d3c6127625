"""The errors of the client."""

from __future__ import annotations

from typing import Any, ClassVar

from keyscale.errors import Domain, KeyscaleError


class ReportedError(KeyscaleError):
    """Root of the errors that the client and the command line report."""

    title: ClassVar[str]

    def as_problem(self) -> dict[str, Any]:
        """Returns the error in the control plane's form (problem+json)."""
        return {
            "code": self.code,
            "title": self.title,
            "detail": str(self),
            "advice": self.advice,
            "retryable": self.retryable,
        }


class ClientError(ReportedError):
    """Root of the errors of the client."""

    code = "CLIENT_ERROR"
    title = "The request cannot be carried out"
    domain: ClassVar[Domain] = "user"
    advice = "Report this with the program that called the client."

    @property
    def message(self) -> str:
        """What went wrong, as a sentence."""
        return str(self)


class ControlPlaneNotFoundError(ClientError):
    """Arguments, environment and home directory name no control plane."""

    code = "CLIENT_CONTROL_PLANE_NOT_FOUND"
    title = "No control plane is known"
    advice = (
        "Start one with `./keyscale up`, or name a running control plane by --url and --token (KEYSCALE_URL,"
        " KEYSCALE_TOKEN)."
    )


class CaFileError(ClientError):
    """The file with certificate authorities cannot be used."""

    code = "CLIENT_CA_FILE_UNUSABLE"
    title = "The certificate authorities cannot be read"
    advice = "Name a readable PEM file with --ca-file (KEYSCALE_CA_FILE)."


class ControlPlaneUnreachableError(ClientError):
    """Nothing answers at the address of the control plane."""

    code = "CLIENT_CONTROL_PLANE_UNREACHABLE"
    title = "The control plane does not answer"
    domain = "external"
    retryable = True
    advice = "Start it with `./keyscale up`, or check the address (`./keyscale where`)."


class ControlPlaneNotProvenError(ClientError):
    """Another program answers at the address in the home directory.

    It gets no token.
    """

    code = "CLIENT_CONTROL_PLANE_NOT_PROVEN"
    title = "Another program answers at the control plane's address"
    domain = "external"
    advice = (
        "Start the control plane of this home with `./keyscale up`; restart a control plane of an earlier version. If"
        " you trust the address, name it with --url."
    )


class UnexpectedAnswerError(ClientError):
    """The server at the address does not speak Keyscale's API."""

    code = "CLIENT_UNEXPECTED_ANSWER"
    title = "The server is not a control plane of this version"
    domain = "external"
    advice = "Check that a Keyscale control plane of the same version is at the address (`./keyscale where`)."


class JobFileError(ClientError):
    """A file that declares jobs cannot be applied."""

    code = "CLIENT_JOB_FILE_INVALID"
    title = "The file does not declare valid jobs"
    advice = "Each line of the message begins with a file and a line; `docs/guide/client.md` has an example."


class ChangesTooLargeError(ClientError):
    """State changes are too many or too large for one request."""

    code = "CLIENT_CHANGES_TOO_LARGE"
    title = "One request cannot hold all changes"
    advice = (
        "Split the changes, and give each further part the checkpoint_id of the part before (`--checkpoint`). A"
        " LOCATION in place of a job takes any number, as does `keyscale.state_io.change_keys`."
    )


class OperationFailedError(ClientError):
    """The control plane accepted the operation, but the operation failed."""

    code = "CLIENT_OPERATION_FAILED"
    title = "The operation failed"
    domain = "external"
    advice = "The message gives the reason; see also `./keyscale jobs show JOB` and `./keyscale logs JOB`."


class WaitTimeoutError(ClientError):
    """The time to wait passed before the status or end was reached."""

    code = "CLIENT_WAIT_TIMED_OUT"
    title = "The time to wait is over"
    domain = "external"
    retryable = True
    advice = "Nothing was changed. Wait again with a longer --timeout; `./keyscale jobs show JOB` shows the job."


class RefusedError(ClientError):
    """The control plane refused the request.

    Attributes:
        code: The control plane's own code, which docs/errors.md explains.
        advice: The control plane's own advice.
        problem: The body of the problem+json answer.
        status: The HTTP status of that answer.
    """

    code = "CLIENT_REFUSED"
    title = "The control plane refused the request"
    advice = "Follow the control plane's own advice, which is shown with the error."

    def __init__(self, problem: dict[str, Any], status: int) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or f"HTTP {status}"))
        self.problem = problem
        self.status = status
        own: dict[str, Any] = {
            name: problem[name] for name in ("code", "title", "advice", "retryable") if name in problem
        }
        vars(self).update(own)  # the class has them for every error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.status)

    def as_problem(self) -> dict[str, Any]:
        """Returns the control plane's answer, unchanged."""
        return self.problem
