"""Credentials for a part of a bucket, by role and policy."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .errors import StoreRefusedError, StoreUnavailableError
from .object_store import check_prefix

_READ = ("s3:GetObject",)
_WRITE = ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject")
_LIST = ("s3:ListBucket", "s3:ListBucketMultipartUploads")
_LIFE_S = 3600
"""The longest session of a role that was itself assumed."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The access rights to the objects of a store.

    Attributes:
        store_url: The store, `s3://bucket/prefix`.
        own: Prefixes of objects that may be read, written and deleted.
        readable: Prefixes of objects that may be read.
    """

    store_url: str
    own: tuple[str, ...]
    readable: tuple[str, ...] = ()

    def policy(self) -> dict[str, Any]:
        """Returns the grant as an S3 policy document; pure."""
        parts = urlsplit(self.store_url)
        bucket, root = f"arn:aws:s3:::{parts.netloc}", f"{parts.path.strip('/')}/".lstrip("/")

        def objects(prefixes: tuple[str, ...]) -> list[str]:
            return [f"{bucket}/{root}{_literal(check_prefix(prefix))}*" for prefix in prefixes]

        visible = [f"{root}{_literal(prefix)}*" for prefix in (*self.own, *self.readable)]
        statements: list[dict[str, Any]] = [
            {"Effect": "Allow", "Action": list(_WRITE), "Resource": objects(self.own)},
            {"Effect": "Allow", "Action": list(_READ), "Resource": objects(self.readable)},
            {
                "Effect": "Allow",
                "Action": list(_LIST),
                "Resource": [bucket],
                "Condition": {"StringLikeIfExists": {"s3:prefix": visible}},
            },
        ]
        return {"Version": "2012-10-17", "Statement": [each for each in statements if each["Resource"]]}


@dataclass(frozen=True, slots=True)
class GrantedCredentials:
    """Credentials that are valid until `expires_at_ms`."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at_ms: int


def assume(role: str, grant: Grant, *, session: str, endpoint_url: str | None) -> GrantedCredentials:
    """Returns new credentials of a role, limited to a grant.

    Args:
        role: The role's ARN. A store without roles may want any text of this form.
        grant: The rights of the credentials; the role must have at least these rights.
        session: A name that the store's audit log shows.
        endpoint_url: Address of the Security Token Service; None for the address in AWS's configuration.

    Raises:
        StoreUnavailableError: The service does not answer.
        StoreRefusedError: The service refuses, or lacks this function.
    """
    # Imported here because importing the S3 client takes 0.2 s, which workers with a local store would pay for nothing.
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    opened = boto3.session.Session()
    try:
        # Typed as Any: the stubs of this service are not installed.
        service: Any = opened.client(
            "sts",
            endpoint_url=endpoint_url,
            region_name=opened.region_name or "us-east-1",
            config=Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2, "mode": "standard"}),
        )
        answer = service.assume_role(
            RoleArn=role,
            RoleSessionName=session[:64],
            DurationSeconds=_LIFE_S,
            Policy=json.dumps(grant.policy(), separators=(",", ":")),
        )
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", "")
        kind = StoreUnavailableError if status >= 500 and status != 501 else StoreRefusedError
        raise kind(f"the store's token service answered {status} {code}") from error
    except BotoCoreError as error:
        raise StoreUnavailableError(f"the store's token service failed: {type(error).__name__}") from error
    made = answer["Credentials"]
    return GrantedCredentials(
        made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"], int(made["Expiration"].timestamp() * 1000)
    )


def _literal(text: str) -> str:
    """Escapes `*`, `?` and `$` in text for a policy's pattern."""
    return "".join(f"${{{character}}}" if character in "*?$" else character for character in text)
