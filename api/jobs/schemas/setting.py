"""The settings that a job has."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from keyscale.jobs.protocol.specification import ChangeClass

from ...shapes import Answer


class SettingAnswer(Answer):
    """A setting of a job's specification, which holds one value."""

    path: str = Field(
        description="Its place in the specification, such as `checkpoints.interval_ms`. `*` stands for any name."
    )
    type: Literal["integer", "number", "string", "array"]
    change_class: ChangeClass = Field(
        description=(
            "When a running job takes over another value: FIXED: never. RESTART: with a new driver. RESCALE: by a"
            " rescale, with the running driver where that can be. NEXT_BATCH and AT_ONCE: its driver runs on."
        )
    )
    description: str
    default: Any = Field(description="null: there is none, or the description says it.")
    minimum: float | None
    maximum: float | None
    choices: list[str] = Field(description="All values that are allowed; empty for no such limit.")
    of_types: list[str] = Field(description="The types of `restart` that have the setting; empty for all.")


class SettingList(Answer):
    """All settings of a job, in the order of their declaration."""

    settings: list[SettingAnswer]
