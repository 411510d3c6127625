"""Secrets of a job.

The script names them; the control plane's environment holds them.
"""

from __future__ import annotations

import os

from .errors import MissingSecretError, SecretNotNamedError
from .protocol.redaction import JOB_SECRET_PREFIX, NAMED_VARIABLE, mask_known

_revealed: dict[str, str] = {}  # by variable; the secrets that this process has read or unpickled


class Secret:
    """A secret by name, such as a database address with its password.

    Its value is the environment variable `KEYSCALE_JOB_SECRET_<name>`. A driver has the variables of the secrets that
    its job names: in its `secrets`, or as the value of a parameter. Neither `repr` nor an error shows the value. A
    pickled secret carries its value to the executors, which need no such variable.
    """

    __slots__ = ("_name", "_value")

    def __init__(self, name: str) -> None:
        self._name = name
        self._value: str | None = None

    def reveal(self) -> str:
        """Returns the value.

        Raises:
            SecretNotNamedError: The job does not name it.
            MissingSecretError: The environment variable is not set.
        """
        if self._value is not None:
            return self._value
        variable = JOB_SECRET_PREFIX + self._name
        value = os.environ.get(variable)
        if not value:
            named = os.environ.get(NAMED_VARIABLE)
            if named is not None and self._name not in named.split(","):
                raise SecretNotNamedError(f"the job does not name the secret {self._name}")
            raise MissingSecretError(f"the environment variable {variable} is not set where the driver runs")
        _revealed[variable] = value
        return value

    def __getstate__(self) -> tuple[str, str]:
        return self._name, self.reveal()

    def __setstate__(self, state: tuple[str, str]) -> None:
        self._name, value = state
        self._value = _revealed[JOB_SECRET_PREFIX + self._name] = value

    def __repr__(self) -> str:
        return f"Secret({self._name!r})"


def revealed(text: str | Secret) -> str:
    """Returns the value of a setting that may be a secret."""
    return text.reveal() if isinstance(text, Secret) else text


def without_secrets(text: str) -> str:
    """Masks every secret known to this process.

    These are the job's secrets and the secrets in the environment.
    """
    return mask_known(text, {**os.environ, **_revealed})
