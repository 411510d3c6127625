"""Declares each setting of a job once.

Requests, revisions, assignments of drivers, plans, forms and the reference of settings follow from these models.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeGuard, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    field_validator,
    model_validator,
)

from keyscale.vocabulary import KEY_GROUPS_MAX, Approval, AutoscalerMode, KeyGroupDivision, RescaleMode

from .strict_model import StrictModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

FAILURE_TIMES_MAX = 100
DURATION_MS_MAX = 365 * 24 * 3600 * 1000
COUNT_MAX = 1_000_000
LIBRARIES_MAX = 200
_PARAMETERS_MAX = 200
_SECRETS_MAX = 100
_BATCH_INTERVAL_MS_MAX = 24 * 3600 * 1000
_KEY_GROUPS_DEFAULT_MIN = 128


def default_max_parallelism(parallelism: int) -> int:
    """Returns the default max parallelism of a job, as in Flink.

    It is 1.5 times the parallelism, rounded up to a power of two, from 128 to 32768.
    """
    power = 1 << (parallelism + parallelism // 2 - 1).bit_length()
    return min(max(power, _KEY_GROUPS_DEFAULT_MIN), KEY_GROUPS_MAX)


def _default_max_parallelism(given: dict[str, Any]) -> int:
    return default_max_parallelism(given.get("parallelism", 1))


class ChangeClass(StrEnum):
    """When a running job takes over a changed setting.

    A field of a model is annotated with its class; a field without a class has the class of the setting that holds it.
    """

    FIXED = "FIXED"  # never: a job keeps the setting
    RESTART = "RESTART"  # with a new driver
    RESCALE = "RESCALE"  # by a rescale: with the running driver where that can be, else with a new one
    NEXT_BATCH = "NEXT_BATCH"
    AT_ONCE = "AT_ONCE"


CHANGE_CLASS = "x-change"
"""The key of a setting's class of change in the JSON schema."""


@dataclass(frozen=True, slots=True)
class OfProgram:
    """Marks a setting that the program's declaration depends on."""


class Settings(StrictModel):
    """The base of the models of settings."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Adds the class of change to the JSON schema of each setting."""
        form = handler(schema)
        properties = handler.resolve_ref_schema(form).get("properties", {})
        for name, field in cls.model_fields.items():
            for each in field.metadata:
                if isinstance(each, ChangeClass):
                    properties[name][CHANGE_CLASS] = each.value
        return form


class CheckpointSettings(Settings):
    """How often a job's checkpoints are taken and how many are kept."""

    interval_ms: Annotated[int, ChangeClass.AT_ONCE] = Field(
        default=10_000, ge=100, le=DURATION_MS_MAX, description="Time between the starts of two checkpoints."
    )
    min_pause_ms: Annotated[int, ChangeClass.AT_ONCE] = Field(
        default=0,
        ge=0,
        le=DURATION_MS_MAX,
        description="Minimum time between the end of one checkpoint and the start of the next.",
    )
    timeout_ms: Annotated[int, ChangeClass.AT_ONCE] = Field(
        default=600_000,
        ge=1000,
        le=DURATION_MS_MAX,
        description="A checkpoint that is not complete this long after it began has failed.",
    )
    retained_count: Annotated[int, ChangeClass.AT_ONCE] = Field(
        default=3, ge=1, le=COUNT_MAX, description="Number of completed checkpoints that are kept."
    )
    tolerable_failed_checkpoints: Annotated[int, ChangeClass.AT_ONCE] = Field(
        default=10, ge=0, le=COUNT_MAX, description="Consecutive failures before the job fails."
    )
    store_outage_max_ms: Annotated[int, ChangeClass.RESTART] = Field(
        default=300_000,
        ge=0,
        le=DURATION_MS_MAX,
        description="How long a batch waits for an unavailable object store or sink before it fails.",
    )


class SavepointSettings(Settings):
    """When the platform takes savepoints, and how long it keeps them."""

    interval_ms: Annotated[int | None, ChangeClass.AT_ONCE] = Field(
        default=None,
        ge=60_000,
        le=DURATION_MS_MAX,
        description="Time between two savepoints that the platform takes by itself. Default: it takes none.",
    )
    keep_count: Annotated[int, ChangeClass.AT_ONCE] = Field(
        default=3, ge=1, le=1000, description="Number of these savepoints that are kept."
    )
    keep_age_ms: Annotated[int | None, ChangeClass.AT_ONCE] = Field(
        default=None,
        ge=60_000,
        le=DURATION_MS_MAX,
        description="Age above which one of these savepoints is deleted, unless it is the newest that is known to be"
        " intact. Default: no limit.",
    )


_HOURS = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")


def _check_hours(text: str) -> str:
    if not _HOURS.fullmatch(text):
        raise ValueError(f"{text} is not a span of a day such as 22:00-06:00")
    begin, end = text.split("-")
    if begin == end:
        raise ValueError(f"{text} begins and ends at the same minute; 00:00-12:00 and 12:00-00:00 are the whole day")
    return text


HoursOfDay = Annotated[
    str, AfterValidator(_check_hours), Field(json_schema_extra={"pattern": rf"^(?!(.+)-\1$){_HOURS.pattern}$"})
]
"""A span of each day in UTC, such as 22:00-06:00."""


class AutoscalerSettings(Settings):
    """Whether and within which limits the platform chooses a job's parallelism."""

    mode: Annotated[AutoscalerMode, Strict(False)] = Field(
        default=AutoscalerMode.DISABLED,
        description=(
            "MONITORING: the platform advises a parallelism, with its evidence. ACTIVE: it rescales the job by itself."
        ),
    )
    parallelism_min: int = Field(default=1, ge=1, le=KEY_GROUPS_MAX, description="The smallest parallelism.")
    parallelism_max: int | None = Field(
        default=None,
        ge=1,
        le=KEY_GROUPS_MAX,
        description=(
            "The largest parallelism. Default: the task slots of the running driver, which parallelism_limit sets."
        ),
    )
    catch_up_ms: int = Field(
        default=600_000,
        ge=1000,
        le=DURATION_MS_MAX,
        description="The time in which the job shall process its backlog, such as after an outage.",
    )
    excluded_hours: list[HoursOfDay] = Field(
        default_factory=list,
        max_length=24,
        description="Times of each day, in UTC, at which the job keeps its parallelism, such as `08:00-09:30`.",
    )
    core_hours_per_day: float | None = Field(
        default=None,
        ge=0,
        le=COUNT_MAX,
        description=(
            "Budget: parallelism by time, from midnight to midnight in UTC. The job is not scaled up beyond it."
            " Default: no budget."
        ),
    )
    sleep_after_ms: int | None = Field(
        default=None,
        ge=10_000,
        le=DURATION_MS_MAX,
        description=(
            "An idle job sleeps after this time without input: Spark ends, and starts when records arrive."
            " Default: never."
        ),
    )

    @property
    def lets_sleep(self) -> bool:
        """Whether an idle job may sleep."""
        return self.mode is AutoscalerMode.ACTIVE and self.sleep_after_ms is not None

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.parallelism_max is not None and self.parallelism_max < self.parallelism_min:
            raise ValueError("parallelism_max is less than parallelism_min")
        return self


class RestartSettings(Settings):
    """The base of restart strategies, which `type` tells apart."""

    model_config = ConfigDict(json_schema_extra={"required": ["type"]})


class NoRestart(RestartSettings):
    """A failed job is not restarted."""

    type: Literal["none"] = "none"


class FixedDelayRestart(RestartSettings):
    """A limited number of restarts, each after the same delay."""

    type: Literal["fixed-delay"] = "fixed-delay"
    attempts: int = Field(
        default=1,
        ge=1,
        le=COUNT_MAX,
        description="Number of restarts. The count starts again when the job's user starts the job.",
    )
    delay_ms: int = Field(
        default=1000, ge=0, le=DURATION_MS_MAX, description="Delay between a failure and the restart."
    )


class ExponentialDelayRestart(RestartSettings):
    """Restarts after growing delays.

    The delay is reset when the job has run well for a while.
    """

    type: Literal["exponential-delay"] = "exponential-delay"
    initial_backoff_ms: int = Field(
        default=1000, ge=1, le=DURATION_MS_MAX, description="Delay before the first restart."
    )
    max_backoff_ms: int = Field(default=60_000, ge=1, le=DURATION_MS_MAX, description="Maximum delay.")
    backoff_multiplier: float = Field(default=1.5, ge=1, le=100, description="Factor from one delay to the next.")
    reset_backoff_threshold_ms: int = Field(
        default=3_600_000,
        ge=1,
        le=DURATION_MS_MAX,
        description="After this time without a failure, the delay returns to its initial value.",
    )
    jitter_factor: float = Field(
        default=0.1, ge=0, le=1, description="Random jitter: the share by which a delay may be longer or shorter."
    )
    attempts_before_reset_backoff: int | None = Field(
        default=None,
        ge=1,
        le=FAILURE_TIMES_MAX - 1,
        description="Maximum number of restarts without a reset in between; None for no limit.",
    )

    @model_validator(mode="after")
    def _check_backoffs(self) -> Self:
        if self.max_backoff_ms < self.initial_backoff_ms:
            raise ValueError("max_backoff_ms is less than initial_backoff_ms")
        return self


class FailureRateRestart(RestartSettings):
    """Restarts as long as failures are not too frequent."""

    type: Literal["failure-rate"] = "failure-rate"
    max_failures_per_interval: int = Field(
        default=1, ge=1, le=FAILURE_TIMES_MAX - 1, description="With more failures in an interval the job fails."
    )
    failure_rate_interval_ms: int = Field(
        default=60_000, ge=1, le=DURATION_MS_MAX, description="Length of the interval in which failures are counted."
    )
    delay_ms: int = Field(
        default=1000, ge=0, le=DURATION_MS_MAX, description="Delay between a failure and the restart."
    )


RestartStrategy = Annotated[
    NoRestart | FixedDelayRestart | ExponentialDelayRestart | FailureRateRestart, Field(discriminator="type")
]
"""Whether and when a failed job is restarted. Names are as in Flink."""


SECRET_NAME_PATTERN = r"^[A-Za-z0-9_]{1,100}$"  # noqa: S105 - the form of a name
SecretName = Annotated[str, Field(pattern=SECRET_NAME_PATTERN)]


class SecretReference(Settings):
    """A parameter that is a secret of the platform."""

    secret: SecretName = Field(description="Name of the secret.")


LibraryName = Annotated[str, Field(pattern=r"^([0-9a-f]{32}|package:[A-Za-z0-9._-]{1,100})$")]
"""The id of an artifact, or a package of the platform's jars."""


class ProgramFile(Settings):
    """The file of a job's program."""

    artifact_id: Annotated[str, ChangeClass.RESTART, OfProgram()] = Field(
        description="The program: the id of a .py or .zip artifact."
    )


class ProgramSettings(Settings):
    """Everything that a program is loaded with."""

    libraries: Annotated[list[LibraryName], ChangeClass.RESTART, OfProgram()] = Field(
        default_factory=list,
        max_length=LIBRARIES_MAX,
        description="Libraries that the program imports: ids of .py, .zip, .whl and .jar artifacts, and packages of the"
        " platform's jars as `package:NAME`.",
    )
    parallelism: Annotated[int, ChangeClass.RESCALE] = Field(
        default=1,
        ge=1,
        le=KEY_GROUPS_MAX,
        description="Subtasks per operator: from 1 to max_parallelism.",
    )
    max_parallelism: Annotated[int, ChangeClass.FIXED] = Field(
        default_factory=_default_max_parallelism,
        ge=1,
        le=KEY_GROUPS_MAX,
        description=(
            "Number of key groups. Default: the number of the snapshot that the job starts from; else as in Flink, at"
            " least 128."
        ),
    )
    parameters: Annotated[dict[str, str | SecretReference], ChangeClass.RESTART, OfProgram()] = Field(
        default_factory=dict,
        max_length=_PARAMETERS_MAX,
        description='The script reads them as env.parameters. `{"secret": NAME}` stands for the value of a secret.',
    )
    secrets: Annotated[list[SecretName] | None, ChangeClass.RESTART, OfProgram()] = Field(
        default_factory=list,
        max_length=_SECRETS_MAX,
        validate_default=True,
        description=(
            "Names of the secrets that the script reads by `Secret(NAME)`; secrets of parameters are added. null: a job"
            " of a version before 0.2, which gets all secrets."
        ),
    )
    spark_conf: Annotated[dict[str, str], ChangeClass.RESTART, OfProgram()] = Field(
        default_factory=dict, description="Spark settings; only settings of the allow-list."
    )

    @field_validator("secrets")
    @classmethod
    def _add_secrets_of_parameters(cls, names: list[str] | None, info: ValidationInfo) -> list[str] | None:
        """Adds the secrets that parameters refer to."""
        if names is None:
            return None
        referred = [each for each in info.data.get("parameters", {}).values() if isinstance(each, SecretReference)]
        return sorted({*names, *(each.secret for each in referred)})


class JobSpec(ProgramSettings, ProgramFile):  # the fields of the last base come first
    """Everything that a user decides about a job."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "artifact_id": "5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
                    "parallelism": 2,
                    "parameters": {"input": "/data/reports", "output": "/data/out", "database": {"secret": "DATABASE"}},
                    "checkpoints": {"interval_ms": 5000},
                }
            ]
        },
    )

    rescale_mode: Annotated[RescaleMode, Strict(False), ChangeClass.AT_ONCE] = Field(
        default=RescaleMode.LIVE,
        description=(
            "How a rescale is carried out: LIVE, by the running driver between two batches where that is possible, or"
            " STANDBY, by a new driver."
        ),
    )
    key_group_division: Annotated[KeyGroupDivision, Strict(False), ChangeClass.AT_ONCE] = Field(
        default=KeyGroupDivision.BY_COUNT,
        description=(
            "How the next rescale, or the next restore of a savepoint, divides key groups among subtasks: BY_COUNT,"
            " evenly by number, or BY_SIZE, evenly by bytes and entries of the state, if the largest subtask gets at"
            " least 10 % less state."
        ),
    )
    parallelism_limit: Annotated[int | None, ChangeClass.RESTART] = Field(
        default=None,
        ge=1,
        le=KEY_GROUPS_MAX,
        description=(
            "The largest parallelism that a live rescale reaches: Spark is started with as many task slots. Default:"
            " with a local master twice the parallelism, at least 8; on a cluster the parallelism."
        ),
    )
    autoscaler: Annotated[AutoscalerSettings, ChangeClass.AT_ONCE] = Field(
        default=AutoscalerSettings(),
        description="Whether and within which limits the platform chooses the parallelism.",
    )
    hash_id: Annotated[Literal["spark", "java"], ChangeClass.FIXED] = Field(
        default="spark", description="The hash function that maps keys to key groups."
    )
    checkpoints: Annotated[CheckpointSettings, ChangeClass.AT_ONCE] = Field(
        default=CheckpointSettings(), description="How often checkpoints are taken and how many are kept."
    )
    savepoints: Annotated[SavepointSettings, ChangeClass.AT_ONCE] = Field(
        default=SavepointSettings(),
        description="When the platform takes savepoints by itself, and how long it keeps them.",
    )
    restart: Annotated[RestartStrategy | None, ChangeClass.AT_ONCE] = Field(
        default=None,
        description=(
            "Whether and when the job is started again after a failure. Default: the strategy of its script; else"
            " immediately the first time, then after growing pauses of up to a minute, until 8 attempts in a row have"
            " made no progress, or the same exception of the job's code has come 3 times in a row on the same batch."
        ),
    )
    approval: Annotated[Approval, Strict(False), ChangeClass.AT_ONCE] = Field(
        default=Approval.NONE,
        description=(
            "REQUIRED: an update, a rescale or a rollback of the job waits until another user approves it. A change of"
            " this setting waits, too."
        ),
    )
    batch_interval_ms: Annotated[int | None, ChangeClass.NEXT_BATCH] = Field(
        default=None,
        ge=0,
        le=_BATCH_INTERVAL_MS_MAX,
        description=(
            "Minimum time between the starts of two batches with input. Default: the script's value; else no minimum:"
            " a batch begins as soon as input is available and the previous batch has ended."
        ),
    )

    def given(self) -> dict[str, Any]:
        """Returns the specification as JSON, with every default filled in."""
        return self.model_dump(mode="json")


def changed(present: JobSpec, change: Mapping[str, Any]) -> JobSpec:
    """Returns a specification after a merge patch (RFC 7386).

    A null resets a setting to its default, and removes an entry. Another type of restart strategy replaces the present
    strategy as a whole.

    Raises:
        ValidationError: A value is not allowed, or a setting does not exist.
    """
    return JobSpec.model_validate(patched(present.given(), change))


def patched(
    present: Mapping[str, Any], change: Mapping[str, Any], model: type[BaseModel] | None = JobSpec
) -> dict[str, Any]:
    """Returns settings after a merge patch, without their defaults.

    A null of a setting that does not exist stays, so that it is refused like any other misspelt setting.

    Args:
        present: The settings before.
        change: The patch.
        model: The model of the settings; None: any entries.
    """
    merged = dict(present)
    for name, value in change.items():
        before = merged.pop(name, None)
        field = None if model is None else model.model_fields.get(name)
        if isinstance(value, dict):
            is_merged = isinstance(before, dict) and not _is_another_type(name, before, value)
            inner = field.annotation if field is not None and _is_model(field.annotation) else None
            merged[name] = patched(before if is_merged else {}, value, inner)
        elif value is not None or (field is None and model is not None):
            merged[name] = value
    return merged


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that differs, by its path; None: the value is missing."""

    path: str
    before: Any
    after: Any

    @property
    def change_class(self) -> ChangeClass:
        """When a running job takes over the setting."""
        return change_class_of(self.path)

    @property
    def needs_restart(self) -> bool:
        """Whether a running job gets another driver for it in any case."""
        return self.change_class in {ChangeClass.FIXED, ChangeClass.RESTART}

    @property
    def needs_attempt(self) -> bool:
        """Whether a running job gets another attempt for it."""
        return self.needs_restart or self.change_class is ChangeClass.RESCALE


def differences(before: JobSpec, after: JobSpec) -> list[Difference]:
    """Returns the differences between two specifications.

    Settings with entries are compared entry by entry.
    """
    found = []
    old, new = before.given(), after.given()
    for name in JobSpec.model_fields:
        was, is_ = old[name], new[name]
        if isinstance(was, dict) and isinstance(is_, dict) and not _is_another_type(name, was, is_):
            pairs = [(f"{name}.{key}", was.get(key), is_.get(key)) for key in sorted(was.keys() | is_.keys())]
        else:
            pairs = [(name, was, is_)]
        found += [Difference(*each) for each in pairs if each[1] != each[2]]
    return found


def followed(running: JobSpec, newest: JobSpec) -> JobSpec:
    """Returns the specification that a driver follows while it runs.

    Settings that need another attempt stay as they are.
    """
    merged = running.given()
    for each in differences(running, newest):
        if not each.needs_attempt:
            name, _, entry = each.path.partition(".")
            if entry:
                merged[name][entry] = each.after
            else:
                merged[name] = each.after
    return JobSpec.model_validate(merged)


def change_class_of(path: str) -> ChangeClass:
    """Returns the class of change of a setting."""
    name, _, entry = path.partition(".")
    field = JobSpec.model_fields[name]
    nested = field.annotation.model_fields if _is_model(field.annotation) else {}
    for each in (*(nested[entry].metadata if entry in nested else ()), *field.metadata):
        if isinstance(each, ChangeClass):
            return each
    raise LookupError(f"the setting {path} has no class of change")


def defines_program(path: str) -> bool:
    """Returns whether the program's declaration depends on a setting."""
    field = JobSpec.model_fields[path.partition(".")[0]]
    return any(isinstance(each, OfProgram) for each in field.metadata)


def _is_another_type(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Returns whether a setting of several types gets another type."""
    field = JobSpec.model_fields.get(name)
    parts = () if field is None else get_args(field.annotation)
    has_types = any(
        getattr(each, "discriminator", None) for part in parts for each in getattr(part, "__metadata__", ())
    )
    return has_types and after.get("type", before.get("type")) != before.get("type")


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def known_settings(values: Any, model: type[BaseModel] = JobSpec) -> Any:
    """Returns settings without the settings that this version does not have.

    A newer peer may send them.
    """
    if not isinstance(values, dict):
        return values
    known = {name: value for name, value in values.items() if name in model.model_fields}
    for name, value in known.items():
        annotation = model.model_fields[name].annotation
        if _is_model(annotation):
            known[name] = known_settings(value, annotation)
    return known


ReceivedSpec = Annotated[JobSpec, BeforeValidator(known_settings)]
"""A specification from a peer, which may be newer."""
