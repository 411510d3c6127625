"""Prepares a bucket, and refuses an unsuitable store.

It creates a missing bucket. Run it as `python -m keyscale.deploy.stack.bucket BUCKET`, with endpoint and credentials in
the AWS environment.
"""

from __future__ import annotations

import sys
import time
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionError, HTTPClientError  # noqa: A004 - botocore's own name

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

READY_WITHIN_SECONDS = 30
_EXISTS_ALREADY = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})


def create_bucket(client: S3Client, bucket: str, within_seconds: float = READY_WITHIN_SECONDS) -> None:
    """Creates a missing bucket; waits for a store that is still starting.

    Args:
        client: The client of the store.
        bucket: The name of the bucket.
        within_seconds: The longest time that the store may take to answer.

    Raises:
        ClientError: The store refuses, for example because the credentials are wrong.
        ConnectionError: The store did not answer in time.
    """
    deadline = time.monotonic() + within_seconds
    while True:
        try:
            client.create_bucket(Bucket=bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] in _EXISTS_ALREADY:
                return
            starting = error.response["ResponseMetadata"]["HTTPStatusCode"] >= HTTPStatus.INTERNAL_SERVER_ERROR
            if not starting or time.monotonic() > deadline:
                raise
        except (ConnectionError, HTTPClientError):
            if time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(0.1)


def honours_conditional_create(client: S3Client, bucket: str) -> bool:
    """Returns whether a conditional create (`If-None-Match: *`) protects an object."""
    name = f".conditional-create-{uuid.uuid4().hex}"
    client.put_object(Bucket=bucket, Key=name, Body=b"first", IfNoneMatch="*")
    try:
        client.put_object(Bucket=bucket, Key=name, Body=b"second", IfNoneMatch="*")
        refused = False
    except ClientError as error:
        refused = error.response["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.PRECONDITION_FAILED
    kept = client.get_object(Bucket=bucket, Key=name)["Body"].read()
    client.delete_object(Bucket=bucket, Key=name)
    return refused and kept == b"first"


def main(arguments: list[str]) -> str | None:
    """Prepares the bucket; returns the error, if any, for `sys.exit`."""
    if len(arguments) != 1:
        return "usage: python -m keyscale.deploy.stack.bucket BUCKET"
    bucket = arguments[0]
    # A self-hosted store does not have a host name per bucket.
    client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))
    try:
        create_bucket(client, bucket)
    except (ClientError, ConnectionError, HTTPClientError) as error:
        return f"the bucket {bucket} could not be created: {error}"
    if not honours_conditional_create(client, bucket):
        return "this store ignores 'If-None-Match: *'; Keyscale cannot use it"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
