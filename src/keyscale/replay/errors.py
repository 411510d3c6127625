"""Errors of a replay."""

from __future__ import annotations

from keyscale.errors import KeyscaleError


class ReplayKeyError(KeyscaleError):
    """The key that a replay is limited to has no single operator."""

    code = "REPLAY_KEY_INVALID"
    domain = "user"
    advice = "Name the operator of the key: `./keyscale replay JOB --key KEY --operator UID`."


class ReplayRecordsGoneError(KeyscaleError):
    """The records of the batch to replay are gone from their source."""

    code = "REPLAY_RECORDS_GONE"
    domain = "external"
    advice = (
        "Replay a newer batch. To be able to replay older ones, keep the files, or give the topic a longer retention."
    )


class BreakpointInvalidError(KeyscaleError):
    """A breakpoint is at no line or function of the program."""

    code = "REPLAY_BREAKPOINT_INVALID"
    domain = "user"
    advice = "Give the number of a line with code in the program, or a function such as `Count.process_element`."


class ReplayProgramGoneError(KeyscaleError):
    """The definition of the batch's attempt is not beside the state."""

    code = "REPLAY_PROGRAM_GONE"
    domain = "user"
    advice = (
        "Give the program with --program, and its parameters with --parameter NAME=VALUE; or name the job instead of a"
        " location, so that the control plane has both."
    )
