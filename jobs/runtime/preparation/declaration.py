"""The job that a script declares, without running it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from keyscale.errors import KeyscaleError

from ...operators.failures import with_script_lines
from ...protocol.specification import SecretReference
from ...secret import Secret
from ...streams.environment import StreamEnvironment
from ..errors import JobNotDeclaredError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from ...graph.topology import Topology
    from ...protocol.specification import RestartStrategy
    from .artifact import LocalArtifact


class _DeclaredError(BaseException):
    """Ends the script at `env.execute()`.

    The script's `except Exception` clauses do not catch it.
    """


def declare(
    spark: SparkSession, artifact: LocalArtifact, parameters: Mapping[str, Any]
) -> tuple[Topology, RestartStrategy | None]:
    """Runs a script up to `env.execute()`.

    Args:
        spark: The session.
        artifact: The script.
        parameters: Its parameters; a secret is a reference to it, or {"secret": name}.

    Returns:
        The job, and the restart strategy that the script has set.

    Raises:
        KeyscaleError: The script cannot run, raised, or declares no job.
    """
    found: list[Topology] = []

    def declared(topology: Topology) -> None:
        found.append(topology)
        raise _DeclaredError

    environment = StreamEnvironment(spark, {name: _value_of(given) for name, given in parameters.items()}, declared)
    with environment.provided(), contextlib.suppress(_DeclaredError):
        try:
            artifact.run(spark)
        except KeyscaleError as error:
            raise with_script_lines(error) from None
    if not found:
        raise JobNotDeclaredError("the job's script declared no job")
    return found[0], environment.restart


def _value_of(parameter: Any) -> str:
    return parameter if isinstance(parameter, str) else Secret(SecretReference(**parameter).secret).reveal()
