"""The platform's secrets for jobs, without their values."""

from __future__ import annotations

from pydantic import Field

from ..shapes import Answer, Labels, Request, example


class SecretLabelsRequest(Request):
    """All labels of a secret."""

    labels: Labels = Field(description="They replace the labels of the secret.")


class SecretAnswer(Answer):
    """A secret, without its value."""

    model_config = example(name="DATABASE", labels={"team": "billing"}, is_set=True)

    name: str
    labels: dict[str, str] = Field(description="A user with a scope may name the secret if the scope covers them.")
    is_set: bool = Field(description="Whether this replica has a value of the secret.")


class SecretList(Answer):
    """The secrets in the user's scope, by their names."""

    secrets: list[SecretAnswer]
