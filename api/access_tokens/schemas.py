"""Users' tokens, and the sender of a request."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, Strict

from keyscale.vocabulary import Role

from ..shapes import NAME_PATTERN, Answer, Labels, Request, example, only_if

_DAY_MS = 86_400_000
_NAMES_MAX = 100


class ScopeModel(Request):
    """The jobs that a token reaches.

    These are the named jobs, and jobs that have all of the labels.
    """

    model_config = ConfigDict(
        json_schema_extra={"not": {"properties": {"jobs": {"maxItems": 0}, "labels": {"maxProperties": 0}}}}
    )

    jobs: list[Annotated[str, Field(pattern=NAME_PATTERN)]] = Field(
        default_factory=list, max_length=_NAMES_MAX, description="Ids or names of jobs."
    )
    labels: Labels = Field(default_factory=dict, description="Labels that a job must all have.")


class UserScopeModel(ScopeModel):
    """The jobs that a user reaches."""

    model_config = ConfigDict(json_schema_extra={})  # labels of an issuer can be all that a scope has

    any_labels: list[str] = Field(
        default_factory=list,
        description="Labels, as NAME=VALUE; a job needs one of them. Only users of an issuer have labels.",
    )


class TokenRequest(Request):
    """A new token."""

    model_config = ConfigDict(
        json_schema_extra=only_if(
            *("role", "ADMIN"),
            {"properties": {"scope": {"type": "null"}}},
        )
    )

    name: str = Field(pattern=NAME_PATTERN, description="Appears in events. The name is unique among valid tokens.")
    role: Annotated[Role, Strict(False)]
    scope: ScopeModel | None = Field(
        default=None, description="Default: every job. An administrator's token reaches every job."
    )
    lifetime_ms: int | None = Field(
        default=90 * _DAY_MS, ge=1000, le=3650 * _DAY_MS, description="Default: 90 days. null: it never expires."
    )


class TokenAnswer(Answer):
    """A token, without its value."""

    model_config = example(
        id="7a0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
        name="nightly-deploy",
        role="OPERATOR",
        scope={"jobs": [], "labels": {"team": "billing"}},
        created_by="admin",
        created_at_ms=1_795_000_000_000,
        expires_at_ms=1_802_776_000_000,
        revoked_at_ms=None,
    )

    id: str
    name: str
    role: Role
    scope: ScopeModel | None = Field(description="null: every job.")
    created_by: str
    created_at_ms: int
    expires_at_ms: int | None = Field(description="null: never.")
    revoked_at_ms: int | None = Field(description="null: it has not been revoked.")


class NewTokenAnswer(TokenAnswer):
    """A token with its value, which is never shown again."""

    token: str = Field(description="The value to send as `Authorization: Bearer <token>`.")


class TokenList(Answer):
    """All tokens, the newest first."""

    tokens: list[TokenAnswer]


class UserAnswer(Answer):
    """The user who sent the request."""

    id: str
    name: str
    role: Role
    scope: UserScopeModel | None = Field(description="null: every job.")
    expires_at_ms: int | None = Field(description="When the token or session expires; null: never.")
