"""What a driver is started with.

Also what of it a spare must share. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX, NAMED_VARIABLE
from keyscale.jobs.protocol.spare import SPARE_VARIABLE
from keyscale.log_lines import FIELDS_VARIABLE

from .driver_command import LEAF_PARALLELISM
from .supervisor import DRIVER_QUOTA_VARIABLE, DRIVER_USER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_HERE = "\0/"
"""Stands for the directory of a run or a spare."""
_OF_RUN = frozenset(
    {
        "KEYSCALE_ATTEMPT",
        "KEYSCALE_ATTEMPT_TOKEN",
        "KEYSCALE_JOB_STORE_URL",
        "KEYSCALE_LOCAL_STATE_DIR",
        DRIVER_QUOTA_VARIABLE,
        FIELDS_VARIABLE,
        NAMED_VARIABLE,
    }
)
"""The variables that a driver can still be given when its Spark runs; so can the secrets."""
_SETTINGS_OF_RUN = ("spark.app.name=", f"{LEAF_PARALLELISM}=")
"""The Spark settings that may differ: a name that only Spark's own page shows, and one that the driver sets itself."""


@dataclass(frozen=True, slots=True)
class StartPattern:
    """What is fixed once a driver's JVM runs.

    A spare can take a run whose pattern equals its own.

    Attributes:
        command: The command line.
        variables: The environment.
    """

    command: tuple[str, ...]
    variables: frozenset[tuple[str, str]] = field(repr=False)

    @property
    def user(self) -> tuple[int, int] | None:
        """The uid and gid of the driver; None: the control plane's user."""
        text = dict(self.variables).get(DRIVER_USER_VARIABLE)
        if text is None:
            return None
        uid, gid, *_ = map(int, text.split(":"))
        return uid, gid

    def of_spare(self, directory: Path) -> DriverStart:
        """Returns the start of a spare in its directory."""
        command = [part.replace(_HERE, f"{directory}/") for part in self.command]
        variables = {name: value.replace(_HERE, f"{directory}/") for name, value in self.variables}
        return DriverStart(directory, command, {**variables, SPARE_VARIABLE: "1"})


@dataclass(frozen=True, slots=True)
class DriverStart:
    """The command line and the environment of a driver.

    Attributes:
        directory: The directory of its run.
        command: The command line.
        variables: The environment.
    """

    directory: Path
    command: list[str]
    variables: Mapping[str, str] = field(repr=False)

    @property
    def pattern(self) -> StartPattern | None:
        """What a spare must share; None: no spare can take the run.

        Java code sees the variables of a JVM's start only. So a job with jars and secrets needs a driver of its own.
        """
        has_secrets = any(name.startswith(JOB_SECRET_PREFIX) for name in self.variables)
        if has_secrets and any(part.startswith("spark.jars=") for part in self.command):
            return None
        fixed = {
            (name, self._anywhere(value))
            for name, value in self.variables.items()
            if name not in _OF_RUN and not name.startswith(JOB_SECRET_PREFIX)
        }
        return StartPattern(tuple(map(self._anywhere, _without_settings_of_run(self.command))), frozenset(fixed))

    def in_spare(self, directory: Path) -> dict[str, str]:
        """Returns the variables that name the run's directory.

        They name the spare's directory instead, which has the same layout.
        """
        return {
            name: value.replace(f"{self.directory}/", f"{directory}/")
            for name, value in self.variables.items()
            if name not in _OF_RUN and not name.startswith(JOB_SECRET_PREFIX) and f"{self.directory}/" in value
        }

    def _anywhere(self, text: str) -> str:
        return text.replace(f"{self.directory}/", _HERE)


def _without_settings_of_run(command: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for part in command:
        if part.startswith(_SETTINGS_OF_RUN):
            kept.pop()  # its `--conf`
        else:
            kept.append(part)
    return kept
