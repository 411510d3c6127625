"""Secrets of a job: named in its script, held by whoever runs the platform."""

from __future__ import annotations

import os

from jobs.errors import MissingSecretError

PREFIX = "KEYSCALE_JOB_SECRET_"


class Secret:
    """A secret by its name, such as a database's address with its password.

    Its value is the environment variable `KEYSCALE_JOB_SECRET_<name>`. The control plane hands such variables on from its own
    environment to drivers. Neither its text form nor an error shows the value. Pickled, it carries the value to the
    executors, whose environment need not have it.
    """

    __slots__ = ("_name", "_value")

    def __init__(self, name: str) -> None:
        self._name = name
        self._value: str | None = None

    def reveal(self) -> str:
        """The value.

        Raises:
            MissingSecretError: The environment has none.
        """
        if self._value is not None:
            return self._value
        value = os.environ.get(PREFIX + self._name)
        if not value:
            message = f"the environment variable {PREFIX}{self._name} is not set where the driver runs"
            raise MissingSecretError(message)
        return value

    def __getstate__(self) -> tuple[str, str]:
        return self._name, self.reveal()

    def __setstate__(self, state: tuple[str, str]) -> None:
        self._name, self._value = state

    def __repr__(self) -> str:
        return f"Secret({self._name!r})"


def revealed(text: str | Secret) -> str:
    """A setting's value, whether it is a secret or not."""
    return text.reveal() if isinstance(text, Secret) else text
