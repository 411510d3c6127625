"""The stack's bucket is made once the store has started, and a store that overwrites is refused."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from keyscale.deploy.stack import bucket
from keyscale.deploy.stack.bucket import create_bucket, honours_conditional_create

AWAY = EndpointConnectionError(endpoint_url="http://store")
SILENT = ReadTimeoutError(endpoint_url="http://store")


def refusal(code: str, status: int) -> ClientError:
    return ClientError(cast("Any", {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}), "PUT")


STARTING = refusal("ServiceUnavailable", 503)


class Store:
    """A store that answers requests for a bucket with errors, and keeps one object."""

    def __init__(self, *errors: Exception, overwrites: bool = False, refuses: Exception | None = None) -> None:
        self.errors, self.overwrites, self.refuses = list(errors), overwrites, refuses
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []

    def create_bucket(self, *, Bucket: str) -> None:  # noqa: N803 - boto3's name
        self.asked.append(Bucket)
        if self.errors:
            raise self.errors.pop(0)

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, IfNoneMatch: str) -> None:  # noqa: N803
        assert (Bucket, IfNoneMatch) == ("jobs", "*")
        exists = Key in self.objects
        if not exists or self.overwrites:
            self.objects[Key] = Body
        if exists and self.refuses is not None:
            raise self.refuses

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: ARG002, N803
        return {"Body": io.BytesIO(self.objects[Key])}

    def delete_object(self, *, Bucket: str, Key: str) -> None:  # noqa: ARG002, N803
        del self.objects[Key]


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only pauses move."""
    paused = [0.0]
    monkeypatch.setattr(bucket.time, "monotonic", lambda: sum(paused))
    monkeypatch.setattr(bucket.time, "sleep", paused.append)
    return paused


@pytest.mark.parametrize(
    ("errors", "asked", "raised"),
    [
        ((), 1, None),
        ((AWAY, STARTING, SILENT), 4, None),
        ((refusal("BucketAlreadyOwnedByYou", 409),), 1, None),
        ((refusal("BucketAlreadyExists", 409),), 1, None),
        ((refusal("InvalidAccessKeyId", 403),), 1, ClientError),
        ([AWAY] * 99, 11, EndpointConnectionError),
        ([STARTING] * 99, 11, ClientError),
        ([SILENT] * 99, 11, ReadTimeoutError),
    ],
)
def test_a_bucket_is_asked_for_until_the_store_has_started_or_refuses(
    errors: list[Exception], asked: int, raised: type[Exception] | None
) -> None:
    store = Store(*errors)
    if raised is None:
        create_bucket(cast("Any", store), "jobs", 0.95)
    else:
        with pytest.raises(raised):
            create_bucket(cast("Any", store), "jobs", 0.95)
    assert store.asked == ["jobs"] * asked


EXISTS = refusal("PreconditionFailed", 412)


@pytest.mark.parametrize(
    ("refuses", "overwrites", "is_honoured"),
    [
        (EXISTS, False, True),
        (EXISTS, True, False),
        (None, True, False),
        (None, False, False),
        (refusal("NotImplemented", 501), False, False),
    ],
)
def test_only_a_store_that_refuses_and_keeps_the_first_object_is_usable(
    refuses: Exception | None, overwrites: bool, is_honoured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(refuses=refuses, overwrites=overwrites)
    assert honours_conditional_create(cast("Any", store), "jobs") is is_honoured
    assert store.objects == {}, "its object is removed"
    monkeypatch.setattr(bucket.boto3, "client", lambda *_, **__: store)
    answer = bucket.main(["jobs"])
    assert answer is None if is_honoured else "ignores 'If-None-Match: *'" in (answer or "")


def test_the_command_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "usage" in (bucket.main([]) or "")
    store = Store(refusal("InvalidAccessKeyId", 403))
    monkeypatch.setattr(bucket.boto3, "client", lambda *_, **__: store)
    assert "the bucket jobs could not be created: " in (bucket.main(["jobs"]) or "")


@pytest.mark.parametrize("error", [AWAY, SILENT])
def test_the_command_waits_for_a_store_and_says_that_it_does_not_answer(
    error: Exception, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    given: list[tuple[Any, ...]] = []

    def client(kind: str, *, config: Any) -> Store:
        given.append((kind, config.s3))
        return Store(*[error] * 999)

    monkeypatch.setattr(bucket.boto3, "client", client)
    assert "the bucket jobs could not be created: " in (bucket.main(["jobs"]) or "")
    assert given == [("s3", {"addressing_style": "path"})]
    assert 30 < sum(now) < 31
    assert "usage" in (bucket.main(["jobs", "more"]) or "")
