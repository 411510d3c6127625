"""The specification of a job, as a revision keeps it.

Pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.db.models import Revision


@dataclass(frozen=True, slots=True)
class Specification:
    """Everything that defines a job.

    Attributes:
        artifact_id: The program.
        libraries: Ids of further artifacts, and packages of the platform's jars as `package:NAME`.
        parameters: Text, or `{"secret": NAME}`.
        secrets: Names; None: all secrets, for a job from before jobs named secrets.
        restart: The restart strategy; None: the script's strategy, or the control plane's default.
        batch_interval_ms: Minimum time between two batches; None: the script's value, or no minimum.
    """

    artifact_id: str
    parallelism: int
    libraries: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    secrets: list[str] | None = None
    spark_conf: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)
    restart: dict[str, Any] | None = None
    batch_interval_ms: int | None = None

    @staticmethod
    def of(revision: Revision) -> Specification:
        """Returns what a revision keeps."""
        return Specification(**{name: getattr(revision, name) for name in SPECIFICATION_FIELDS})

    def columns(self) -> dict[str, Any]:
        """Returns the values of a revision's columns."""
        return asdict(self)


FOLLOWED_WHILE_RUNNING = frozenset(
    {
        "batch_interval_ms",
        "checkpoints.interval_ms",
        "checkpoints.min_pause_ms",
        "checkpoints.retained_count",
        "checkpoints.timeout_ms",
        "checkpoints.tolerable_failed_checkpoints",
        "restart",
    }
)
"""The settings that a running driver follows. Any other setting needs a new driver."""

PROGRAM_FIELDS = ("artifact_id", "libraries", "parameters", "secrets", "spark_conf")
"""The fields that determine what a job's program does."""

SPECIFICATION_FIELDS = tuple(each.name for each in fields(Specification))


def secrets_named(parameters: Mapping[str, Any]) -> set[str]:
    """Returns the names of the secrets that parameters refer to."""
    return {value["secret"] for value in parameters.values() if isinstance(value, dict)}


def changed(specification: Specification, change: Mapping[str, Any]) -> Specification:
    """Returns a specification after a change.

    Args:
        specification: The current specification.
        change: The fields that the change gives. Parameters, Spark settings and settings of checkpoints are merged into
            the current values, and null removes a value; other fields replace the current values.
    """
    present = specification.columns()
    merged = {name for name in ("parameters", "spark_conf", "checkpoints") if change.get(name) is not None}
    wanted = {name: value for name, value in change.items() if name in present and name not in merged}
    for name in merged:
        both = {**present[name], **change[name]}
        wanted[name] = {key: value for key, value in both.items() if value is not None}
    new = {**present, **wanted}
    if new["secrets"] is not None:
        new["secrets"] = sorted(set(new["secrets"]) | secrets_named(new["parameters"]))
    return Specification(**new)


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs, by its path; None: the value is missing."""

    field: str
    before: Any
    after: Any

    @property
    def needs_restart(self) -> bool:
        """Whether a running job gets another driver for it."""
        return self.field not in FOLLOWED_WHILE_RUNNING


def differences(before: Specification, after: Specification) -> list[Difference]:
    """Returns the differences between two specifications.

    Fields with entries are compared entry by entry.
    """
    found = []
    old, new = before.columns(), after.columns()
    for name in SPECIFICATION_FIELDS:
        if isinstance(old[name], dict) and isinstance(new[name], dict) and name != "restart":
            for key in sorted(old[name].keys() | new[name].keys()):
                was, is_ = old[name].get(key), new[name].get(key)
                if was != is_:
                    found.append(Difference(f"{name}.{key}", was, is_))
        elif old[name] != new[name]:
            found.append(Difference(name, old[name], new[name]))
    return found
