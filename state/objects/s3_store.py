"""An object store in a bucket of an S3-compatible service."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError, ProfileNotFound
from urllib3.exceptions import HTTPError

from .errors import (
    ObjectCorruptError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreForbiddenError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from .local_store import check_content, receive
from .object_store import ObjectInfo, check_path, check_prefix, check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

_SINGLE_PUT_BYTES_MAX = 64 << 20  # larger files are uploaded in parts, several at a time
_DELETES_PER_REQUEST = 1000  # S3's limit
_READ_TRIES = 3
_CONFLICT_TRIES = 5
_CONFLICT_PAUSE_SECONDS = 0.05

_PASSING = frozenset({"SlowDown", "RequestTimeout", "BadDigest", "RequestTimeTooSkewed"})
_FORBIDDEN = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"})

_LOCK = threading.Lock()
_Result = TypeVar("_Result")


class S3ObjectStore:
    """Objects under a prefix of a bucket in an S3-compatible store.

    The store must honour `If-None-Match: *`. Credentials, region and profile come from AWS's usual configuration, and
    so does the endpoint (`AWS_ENDPOINT_URL`), unless `KEYSCALE_S3_ENDPOINT` is set. Requests have timeouts and a
    limited number of retries: an unreachable store causes an error within about a minute.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        connect_timeout_seconds: float = 5.0,
        read_timeout_seconds: float = 20.0,
        attempts_max: int = 3,
        get_bytes_max: int | None = None,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._endpoint_url = endpoint_url or os.environ.get("KEYSCALE_S3_ENDPOINT") or None
        self._connect_timeout_seconds = connect_timeout_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._attempts_max = attempts_max
        self.get_bytes_max = get_bytes_max
        self._opened: tuple[int, S3Client] | None = None

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # a client holds sockets and locks

    def put(self, path: str, data: bytes) -> None:
        with _failures(path):
            self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=data, ContentMD5=_md5(data))

    def create(self, path: str, data: bytes) -> None:
        for _ in range(_CONFLICT_TRIES):
            try:
                with _failures(path):
                    self._client.put_object(
                        Bucket=self._bucket, Key=self._key(path), Body=data, ContentMD5=_md5(data), IfNoneMatch="*"
                    )
            except StoreUnavailableError as error:
                if not _is_conflict(error):
                    raise
                # Another writer is writing it and may still fail: only a finished object counts.
                if self.head(path) is not None:
                    break
                time.sleep(_CONFLICT_PAUSE_SECONDS)
            else:
                return
        else:
            raise StoreUnavailableError(f"creating {path} conflicted with another writer several times")
        raise ObjectExistsError(f"there is already an object at {path}")

    def get(self, path: str) -> bytes:
        return _with_retries(path, self._get)

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        del immutable  # the bytes are always uploaded
        size_bytes = source.stat().st_size
        with _failures(path):
            if size_bytes <= _SINGLE_PUT_BYTES_MAX:
                with source.open("rb") as file:  # sent from the file: several threads upload at once
                    digest = hashlib.file_digest(file, _md5_hash).digest()
                    file.seek(0)
                    self._client.put_object(
                        Bucket=self._bucket,
                        Key=self._key(path),
                        Body=file,
                        ContentMD5=base64.b64encode(digest).decode(),
                    )
            else:
                self._client.upload_file(str(source), self._bucket, self._key(path), Config=_parts())
        written = self.head(path)
        if written is None or written.size_bytes != size_bytes:
            raise StoreUnavailableError(f"{path} is missing or has another size after its upload")

    def download(self, path: str, target: Path, *, size_bytes: int | None = None, sha256: str | None = None) -> None:
        def receive_once(path: str) -> None:
            with _failures(path):
                body = self._client.get_object(Bucket=self._bucket, Key=self._key(path))["Body"]
                # A StreamingBody has read(), which suffices.
                receive(body, path, target, size_bytes=size_bytes, sha256=sha256)  # type: ignore[arg-type]

        _with_retries(path, receive_once)

    def check(self, path: str, *, size_bytes: int, sha256: str, on_read: Callable[[int], None]) -> None:
        def check_once(path: str) -> None:
            with _failures(path):
                body = self._client.get_object(Bucket=self._bucket, Key=self._key(path))["Body"]
                with contextlib.closing(body):
                    check_content(body, path, size_bytes=size_bytes, sha256=sha256, on_read=on_read)  # type: ignore[arg-type]

        _with_retries(path, check_once)

    def copy(self, source: str, target: str) -> None:
        with _failures(source):
            self._client.copy(
                {"Bucket": self._bucket, "Key": self._key(source)}, self._bucket, self._key(target), Config=_parts()
            )

    def head(self, path: str) -> ObjectInfo | None:
        try:
            with _failures(path):
                found = self._client.head_object(Bucket=self._bucket, Key=self._key(path))
        except ObjectNotFoundError:
            return None
        return ObjectInfo(path, found["ContentLength"], int(found["LastModified"].timestamp() * 1000))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket,
            Prefix=self._prefix + prefix,
            StartAfter=self._prefix + start_after if start_after else "",
        )
        with _failures(prefix):
            for page in pages:
                for found in page.get("Contents", ()):
                    yield ObjectInfo(
                        found["Key"].removeprefix(self._prefix),
                        found["Size"],
                        int(found["LastModified"].timestamp() * 1000),
                    )

    def delete(self, paths: Iterable[str]) -> None:
        keys = [self._key(path) for path in paths]
        for first in range(0, len(keys), _DELETES_PER_REQUEST):
            some = keys[first : first + _DELETES_PER_REQUEST]
            with _failures(self._prefix):
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in some], "Quiet": True}
                )
            if failed := answer.get("Errors"):
                codes = sorted({each.get("Code", "") for each in failed})
                kind = StoreForbiddenError if _FORBIDDEN.intersection(codes) else StoreUnavailableError
                raise kind(f"{len(failed)} of {len(some)} objects could not be deleted: {', '.join(codes)}")

    def remove_unfinished(self, prefix: str, before_ms: int) -> int:
        check_prefix(prefix)
        removed = 0
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        with _failures(prefix):
            for page in pages:
                for upload in page.get("Uploads", ()):
                    if int(upload["Initiated"].timestamp() * 1000) < before_ms:
                        removed += self._abort(upload["Key"], upload["UploadId"])
        return removed

    def _abort(self, key: str, upload_id: str) -> bool:
        try:
            with _failures(key):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
        except ObjectNotFoundError:  # the upload has ended in the meantime
            return False
        return True

    @property
    def _client(self) -> S3Client:
        """This process's client; clients are not used across a fork."""
        with _LOCK:
            if self._opened is None or self._opened[0] != os.getpid():
                session = boto3.session.Session()
                client = session.client(
                    "s3",
                    endpoint_url=self._endpoint_url,
                    region_name=session.region_name or "us-east-1",
                    config=Config(
                        connect_timeout=self._connect_timeout_seconds,
                        read_timeout=self._read_timeout_seconds,
                        retries={"total_max_attempts": self._attempts_max, "mode": "standard"},
                        max_pool_connections=32,
                        # S3-compatible stores differ in their support of the newer checksums. Keyscale checks its own
                        # lengths and hashes on every read, and sends an MD5 with every single-part write.
                        request_checksum_calculation="when_required",
                        response_checksum_validation="when_required",
                        s3={"addressing_style": "path"} if self._endpoint_url else None,
                    ),
                )
                self._opened = (os.getpid(), client)
            return self._opened[1]

    def _key(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _get(self, path: str) -> bytes:
        with _failures(path):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(path))
            with contextlib.closing(answer["Body"]) as body:
                check_size(path, answer["ContentLength"], self.get_bytes_max)
                return body.read()


def _with_retries(path: str, once: Callable[[str], _Result]) -> _Result:
    """Reads an object, with retries after failures and damaged bytes.

    The connection may be at fault.
    """
    for left in reversed(range(_READ_TRIES)):
        try:
            return once(path)
        except (StoreUnavailableError, ObjectCorruptError):
            if not left:
                raise
    raise AssertionError  # the last try returns or raises


@contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise _from_answer(error, path) from error
    except S3UploadFailedError as error:
        if isinstance(answer := error.__context__, ClientError):
            raise _from_answer(answer, path) from error
        raise StoreUnavailableError(f"the upload of {path} failed") from error
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound) as error:
        raise StoreRefusedError(f"found no credentials for the object store: {error}") from error
    except BotoCoreError as error:
        raise StoreUnavailableError(f"the object store failed on {path}: {type(error).__name__}") from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
            raise StoreFullError(f"no local space for {path}: {error.strerror}") from error
        raise StoreUnavailableError(f"the connection failed on {path}: {type(error).__name__}") from error
    except HTTPError as error:
        raise StoreUnavailableError(
            f"the object store broke off its answer on {path}: {type(error).__name__}"
        ) from error


def _from_answer(error: ClientError, path: str) -> Exception:
    code, status = error.response.get("Error", {}).get("Code", ""), _status(error)
    if code == "NoSuchBucket":
        return StoreRefusedError("the bucket does not exist")
    if code in {"NoSuchKey", "NotFound"} or status == 404:
        return ObjectNotFoundError(f"no object exists at {path}")
    if status == 412:
        return ObjectExistsError(f"there is already an object at {path}")
    # 409: another write of the object was in progress; 501: the store will never support the request.
    if (status >= 500 and status != 501) or status in {409, 429} or code in _PASSING:
        return StoreUnavailableError(f"the object store answered {status} {code} on {path}")
    kind = StoreForbiddenError if status == 403 or code in _FORBIDDEN else StoreRefusedError
    return kind(f"the object store answered {status} {code} on {path}")


def _is_conflict(error: StoreUnavailableError) -> bool:
    return isinstance(error.__cause__, ClientError) and _status(error.__cause__) == 409


def _status(error: ClientError) -> int:
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status


def _parts() -> TransferConfig:
    return TransferConfig(multipart_threshold=_SINGLE_PUT_BYTES_MAX, multipart_chunksize=16 << 20, max_concurrency=4)


def _md5(data: bytes) -> str:
    return base64.b64encode(_md5_hash(data).digest()).decode()


def _md5_hash(data: bytes = b"") -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
