"""The platform's secrets for jobs.

They are environment variables of the control plane, and files of a directory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX, NAMED_VARIABLE
from keyscale.jobs.protocol.specification import SECRET_NAME_PATTERN

from .errors import SecretUnknownError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class JobSecrets:
    """Secrets by their names; a job gets the secrets that it names.

    Attributes:
        variables: Environment variables `KEYSCALE_JOB_SECRET_<NAME>`, by their whole names.
        directory: Has a file per secret, called by its name. It is read whenever a driver starts, so a changed secret
            needs no restart of the control plane. A file outranks a variable.
    """

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: Path | None = None

    def require(self, names: Iterable[str]) -> None:
        """Checks that the platform has secrets of these names.

        Raises:
            SecretUnknownError: A secret is missing.
        """
        unknown = sorted(name for name in set(names) if self._find(name) is None)
        if unknown:
            raise SecretUnknownError(f"the secrets do not exist: {', '.join(unknown)}")

    def variables_of(self, names: Iterable[str] | None) -> dict[str, str]:
        """Returns the variables with these secrets, for a driver's environment.

        None stands for all secrets.

        A missing secret is left out: the job itself reports it.
        """
        wanted = self.names() if names is None else set(names)
        found = {name: self._find(name) for name in wanted}
        return {f"{JOB_SECRET_PREFIX}{name}": value for name, value in found.items() if value is not None}

    def environment_of(self, names: Collection[str] | None) -> dict[str, str]:
        """Returns the variables of secrets and a variable with their names.

        From the names a driver sees which secret is missing.
        """
        named = {} if names is None else {NAMED_VARIABLE: ",".join(names)}
        return {**self.variables_of(names), **named}

    def names(self) -> set[str]:
        """Returns the names of all secrets."""
        of_variables = {name.removeprefix(JOB_SECRET_PREFIX) for name in self.variables}
        return of_variables | {file.name for file in self._files()}

    def _find(self, name: str) -> str | None:
        if not re.fullmatch(SECRET_NAME_PATTERN, name):
            return None
        for file in self._files():
            if file.name == name:
                return file.read_text()[:_BYTES_MAX].removesuffix("\n")
        return self.variables.get(JOB_SECRET_PREFIX + name) or None

    def _files(self) -> Iterable[Path]:
        if self.directory is None or not self.directory.is_dir():
            return []
        files = self.directory.iterdir()  # Kubernetes mounts links to files, beside hidden directories
        return [file for file in files if re.fullmatch(SECRET_NAME_PATTERN, file.name) and file.is_file()]
