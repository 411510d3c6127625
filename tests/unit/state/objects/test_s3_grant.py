"""A grant is a policy of its prefixes alone; characters of patterns in names stand for themselves."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from keyscale.state.objects.errors import StoreRefusedError, StoreUnavailableError
from keyscale.state.objects.s3_grant import Grant, GrantedCredentials, assume

GRANT = Grant("s3://bucket/root", ("job/",), ("other/",))


def test_a_policy_names_what_is_own_and_what_is_readable_below_the_stores_root() -> None:
    write, read, seen = Grant("s3://bucket/root/", ("job/",), ("other/savepoints/s/",)).policy()["Statement"]
    assert write["Resource"] == ["arn:aws:s3:::bucket/root/job/*"]
    assert {"s3:PutObject", "s3:DeleteObject"} <= {*write["Action"]}
    assert (read["Resource"], read["Action"]) == (["arn:aws:s3:::bucket/root/other/savepoints/s/*"], ["s3:GetObject"])
    assert seen["Resource"] == ["arn:aws:s3:::bucket"]
    assert seen["Condition"] == {"StringLikeIfExists": {"s3:prefix": ["root/job/*", "root/other/savepoints/s/*"]}}


def test_a_policy_without_readable_prefixes_grants_nothing_of_other_jobs() -> None:
    write, seen = Grant("s3://bucket", ("job/",)).policy()["Statement"]
    assert write["Resource"] == ["arn:aws:s3:::bucket/job/*"]
    assert seen["Condition"] == {"StringLikeIfExists": {"s3:prefix": ["job/*"]}}


def test_characters_of_patterns_in_a_prefix_are_escaped_alone() -> None:
    write, _ = Grant("s3://bucket", ("a$b*c?/",)).policy()["Statement"]
    assert write["Resource"] == ["arn:aws:s3:::bucket/a${$}b${*}c${?}/*"]


class TokenService:
    """A token service with one answer, which keeps what it was asked."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer, self.asked = answer, dict[str, Any]()

    def client(self, name: str, **options: Any) -> TokenService:
        self.asked |= {"service": name, "endpoint_url": options["endpoint_url"], "region": options["region_name"]}
        return self

    def assume_role(self, **asked: Any) -> dict[str, Any]:
        self.asked |= asked
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def assumed(monkeypatch: pytest.MonkeyPatch, service: TokenService) -> GrantedCredentials:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    monkeypatch.setattr(boto3.session.Session, "client", service.client)
    return assume("arn:role", GRANT, session="s" * 70, endpoint_url="http://tokens")


def test_credentials_of_a_role_are_limited_to_the_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    expires = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, dt.UTC)
    made = {"AccessKeyId": "id", "SecretAccessKey": "secret", "SessionToken": "token", "Expiration": expires}
    service = TokenService({"Credentials": made})
    credentials = assumed(monkeypatch, service)
    assert credentials == GrantedCredentials("id", "secret", "token", 1_767_323_045_678)
    assert not {"secret", "token"} & {*repr(credentials).replace("'", " ").split()}
    assert json.loads(service.asked.pop("Policy")) == GRANT.policy()
    assert service.asked == {
        "service": "sts",
        "endpoint_url": "http://tokens",
        "region": "eu-north-1",
        "RoleArn": "arn:role",
        "RoleSessionName": "s" * 64,
        "DurationSeconds": 3600,
    }


def refusal(status: int) -> ClientError:
    return ClientError({"Error": {"Code": "Some"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "AssumeRole")  # type: ignore[typeddict-item]  # the rest is unused


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (refusal(403), StoreRefusedError, "answered 403 Some"),
        (refusal(501), StoreRefusedError, "answered 501 Some"),
        (refusal(500), StoreUnavailableError, "answered 500 Some"),
        (refusal(503), StoreUnavailableError, "answered 503 Some"),
        (ConnectTimeoutError(endpoint_url="http://x"), StoreUnavailableError, "failed: ConnectTimeoutError"),
    ],
)
def test_a_token_service_that_refuses_differs_from_an_outage(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        assumed(monkeypatch, TokenService(failure))
