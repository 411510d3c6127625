"""Changes of a job's specification."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from keyscale.api.schemas.base import Request
from keyscale.api.schemas.job import CheckpointRequest, SecretName
from keyscale.jobs.protocol.messages import RestartStrategy, SecretReference


class SpecificationChange(Request):
    """Values that replace those of a job's present specification. Fields that are not given stay as they are."""

    artifact_id: str | None = Field(default=None, description="Another program: a .py or .zip artifact.")
    parallelism: int | None = Field(default=None, description="From 1 to the job's max parallelism.")
    parameters: dict[str, str | SecretReference | None] | None = Field(
        default=None, description="Parameters to set; null removes one. Others stay."
    )
    secrets: list[SecretName] | None = Field(
        default=None,
        max_length=100,
        description="All names of secrets that the script reads by `Secret(NAME)`; those of parameters are added.",
    )
    spark_conf: dict[str, str | None] | None = Field(
        default=None, description="Spark settings to set; null removes one. Others stay."
    )
    checkpoints: CheckpointRequest | None = Field(
        default=None, description="Settings of checkpoints to change; others stay."
    )
    restart: RestartStrategy | None = Field(default=None, description="null: that of the script, or the default.")
    batch_interval_ms: Annotated[int, Field(ge=0, le=86_400_000)] | None = Field(
        default=None, description="null: that of the script, or none."
    )
    message: str | None = Field(default=None, max_length=500, description="Why; shown with the revision.")
