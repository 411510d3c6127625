"""The contract of object stores, on both kinds."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import io
import os
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ConnectTimeoutError, NoCredentialsError, PartialCredentialsError, ProfileNotFound
from botocore.response import StreamingBody
from botocore.stub import ANY, Stubber
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from urllib3.exceptions import ProtocolError

from keyscale.state.objects import s3_store
from keyscale.state.objects.errors import (
    ConditionalCreateUnsupportedError,
    InvalidObjectPathError,
    ObjectCorruptError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    StoreForbiddenError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUrlError,
)
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.object_store import TEMPORARY_PREFIX, ObjectInfo, ObjectStore, check_path, probe
from keyscale.state.objects.opening import open_store
from keyscale.state.objects.s3_store import S3ObjectStore
from tests.support.servers.s3_server import S3Server, running_s3_server
from tests.support.state.faulty_store import Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mypy_boto3_s3 import S3Client


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with running_s3_server() as server:
        yield server


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.real)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    if request.param == "local":
        return open_store((tmp_path / "a store").as_uri())
    server: S3Server = request.getfixturevalue("s3_server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("KEYSCALE_S3_ENDPOINT", server.endpoint_url)
    return open_store(f"s3://{server.new_bucket()}/some/prefix")


def test_returns_the_bytes_that_were_put(store: ObjectStore) -> None:
    store.put("a/b", b"\x00\xff content")
    assert store.get("a/b") == b"\x00\xff content"


def test_put_replaces(store: ObjectStore) -> None:
    store.put("a", b"one")
    store.put("a", b"two")
    assert store.get("a") == b"two"


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    found = store.head("empty")
    assert found is not None
    assert found.size_bytes == 0


def test_create_succeeds_once(store: ObjectStore) -> None:
    store.create("log/1", b"first")
    with pytest.raises(ObjectExistsError):
        store.create("log/1", b"second")
    assert store.get("log/1") == b"first"


def test_of_many_creators_exactly_one_wins(store: ObjectStore) -> None:
    def attempt(number: int) -> bool:
        try:
            store.create("race", str(number).encode())
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as creators:
        outcomes = list(creators.map(attempt, range(8)))
    assert outcomes.count(True) == 1
    assert store.get("race") == str(outcomes.index(True)).encode()


def test_a_missing_object_is_not_found(store: ObjectStore, tmp_path: Path) -> None:
    assert store.head("nothing/here") is None
    with pytest.raises(ObjectNotFoundError):
        store.get("nothing/here")
    with pytest.raises(ObjectNotFoundError):
        store.download("nothing/here", tmp_path / "target")
    with pytest.raises(ObjectNotFoundError):
        store.copy("nothing/here", "elsewhere")
    assert not (tmp_path / "target").exists()


def test_delete_removes_and_may_be_repeated(store: ObjectStore) -> None:
    store.put("a/b/c", b"1")
    store.put("a/d", b"2")
    store.delete(["a/b/c", "a/none"])
    store.delete(["a/b/c"])
    assert [info.path for info in store.list("")] == ["a/d"]


def test_lists_by_prefix_in_order_after_a_path(store: ObjectStore) -> None:
    paths = ["log/0001", "log/0002", "log/0010", "log-book/1", "log/sub/1", "other"]
    for path in paths:
        store.put(path, path.encode())
    assert [info.path for info in store.list("log/")] == ["log/0001", "log/0002", "log/0010", "log/sub/1"]
    assert [info.path for info in store.list("log/", start_after="log/0002")] == ["log/0010", "log/sub/1"]
    assert [info.path for info in store.list("lo")] == ["log-book/1", "log/0001", "log/0002", "log/0010", "log/sub/1"]
    assert [info.path for info in store.list("")] == sorted(paths)
    assert [info.size_bytes for info in store.list("other")] == [5]
    assert list(store.list("absent/")) == []


@pytest.mark.exhaustive
def test_lists_more_than_a_page(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda number: store.put(f"many/{number:05}", b""), range(1005)))
    assert [info.path for info in store.list("many/")] == [f"many/{number:05}" for number in range(1005)]
    store.delete([f"many/{number:05}" for number in range(1005)])
    assert list(store.list("")) == []


def test_objects_in_s3_are_listed_page_by_page_and_deleted_a_thousand_at_a_time(
    answers: tuple[S3ObjectStore, Stubber],
) -> None:
    store, stubber = answers
    paths = [f"many/{number:05}" for number in range(1005)]
    listed = [{"Key": path, "Size": 1, "LastModified": dt.datetime.now(dt.UTC)} for path in paths]
    wanted = {"Bucket": "bucket", "Prefix": "many/", "StartAfter": ""}
    first_page = {"Contents": listed[:1000], "IsTruncated": True, "NextContinuationToken": "on"}
    stubber.add_response("list_objects_v2", first_page, wanted)
    stubber.add_response(
        "list_objects_v2", {"Contents": listed[1000:], "IsTruncated": False}, {**wanted, "ContinuationToken": "on"}
    )
    assert [info.path for info in store.list("many/")] == paths
    for some in (paths[:1000], paths[1000:]):
        objects = {"Objects": [{"Key": path} for path in some], "Quiet": True}
        stubber.add_response("delete_objects", {}, {"Bucket": "bucket", "Delete": objects})
    store.delete(paths)


def test_uploads_and_downloads_files_verified(store: ObjectStore, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content" * 1000)
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    store.upload(source, "file")
    store.download("file", target, size_bytes=7000, sha256=sha256)
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("immutable", [False, True])
def test_an_uploaded_object_outlives_its_file(store: ObjectStore, tmp_path: Path, *, immutable: bool) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    store.upload(source, "file", immutable=immutable)
    store.upload(source, "file", immutable=immutable)
    source.unlink()
    assert store.get("file") == b"content"


def test_a_file_that_may_change_is_uploaded_as_a_copy(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"before")
    store.upload(source, "file")
    source.write_bytes(b"after!")
    assert store.get("file") == b"before"


@pytest.mark.parametrize("damage", ["length", "content"])
def test_a_damaged_object_is_not_downloaded(store: ObjectStore, tmp_path: Path, damage: str) -> None:
    good = b"content"
    store.put("file", b"conten" if damage == "length" else b"c0ntent")
    with pytest.raises(ObjectCorruptError):
        store.download("file", tmp_path / "target", size_bytes=len(good), sha256=hashlib.sha256(good).hexdigest())
    assert list(tmp_path.glob("target*")) == []


def test_a_check_finds_damage_and_says_how_far_it_is(store: ObjectStore) -> None:
    good = b"content" * 500_000
    sha256 = hashlib.sha256(good).hexdigest()
    store.put("file", good)
    told: list[int] = []
    store.check("file", size_bytes=len(good), sha256=sha256, on_read=told.append)
    assert (told[-1], sorted(told)) == (len(good), told)
    assert len(told) > 1, "only once it was read in full"
    for damaged in (good[:-1], good + b"more", b"C" + good[1:]):
        store.put("file", damaged)
        with pytest.raises(ObjectCorruptError):
            store.check("file", size_bytes=len(good), sha256=sha256, on_read=told.append)
    with pytest.raises(ObjectNotFoundError):
        store.check("none", size_bytes=len(good), sha256=sha256, on_read=told.append)


def test_a_check_reads_little_more_than_the_object_should_have_and_ends_when_it_is_told(store: ObjectStore) -> None:
    store.put("file", b"x" * (8 << 20))
    told: list[int] = []
    with pytest.raises(ObjectCorruptError, match="more than 9 bytes"):
        store.check("file", size_bytes=9, sha256="", on_read=told.append)
    assert max(told) < 4 << 20

    def enough(size_bytes: int) -> None:
        raise KeyboardInterrupt(size_bytes)

    with pytest.raises(KeyboardInterrupt):
        store.check("file", size_bytes=8 << 20, sha256="", on_read=enough)


def test_copies_inside_the_store(store: ObjectStore) -> None:
    store.put("a", b"content")
    store.copy("a", "b/c")
    store.delete(["a"])
    assert store.get("b/c") == b"content"


def test_survives_pickling(store: ObjectStore) -> None:
    store.put("a", b"content")
    again = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own bytes
    assert again.get("a") == b"content"
    assert again.url == store.url


def test_reopens_by_its_url(store: ObjectStore) -> None:
    store.put("a", b"content")
    assert open_store(store.url).get("a") == b"content"


def test_an_object_that_is_too_large_to_be_read_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    store.put("a", b"12345")
    assert open_store(store.url, get_bytes_max=5).get("a") == b"12345"
    limited = open_store(store.url, get_bytes_max=4)
    with pytest.raises(ObjectTooLargeError, match="a has 5 bytes; the limit for reading is 4"):
        pickle.loads(pickle.dumps(limited)).get("a")  # noqa: S301 - our own bytes
    limited.download("a", tmp_path / "a")  # which takes no memory
    assert (tmp_path / "a").read_bytes() == b"12345"


def leave_unfinished(store: ObjectStore, path: str) -> None:
    """Leaves what a process leaves that is killed while it uploads."""
    if isinstance(store, S3ObjectStore):
        started = store._client.create_multipart_upload(Bucket=store._bucket, Key=store._key(path))
        part = {"Bucket": store._bucket, "Key": store._key(path), "UploadId": started["UploadId"]}
        store._client.upload_part(**part, PartNumber=1, Body=b"x" * (5 << 20))  # type: ignore[arg-type]
    elif isinstance(store, LocalObjectStore):
        folder = (store._root / path).parent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{TEMPORARY_PREFIX}0123").write_bytes(b"x")


def test_writes_of_killed_processes_are_removed_once_they_are_old_and_objects_stay(store: ObjectStore) -> None:
    store.put("job/chk-1/manifest.json", b"stays")
    leave_unfinished(store, "job/shared/a")
    leave_unfinished(store, "other/shared/a")
    assert store.remove_unfinished("job/", before_ms=1_000_000_000_000) == 0, "they are of later than 2001"
    later_ms = 4_000_000_000_000
    assert store.remove_unfinished("job/", later_ms) == 1
    assert store.remove_unfinished("job/", later_ms) == 0
    assert store.remove_unfinished("", later_ms) == 1
    assert [info.path for info in store.list("")] == ["job/chk-1/manifest.json"]
    assert store.remove_unfinished("nothing/here/", later_ms) == 0


def test_folders_that_only_held_a_temporary_file_are_removed_with_it(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    leave_unfinished(store, "job/shared/a")
    store.remove_unfinished("job/", 4_000_000_000_000)
    assert list((tmp_path / "store").iterdir()) == []


def test_the_probe_accepts_it_and_leaves_nothing(store: ObjectStore) -> None:
    probe(store)
    assert list(store.list("")) == []


def test_the_clean_up_of_empty_folders_loses_no_put(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)

    def put_and_delete(number: int) -> None:
        for _ in range(50):
            store.put(f"folder/deep/{number}", b"x")
            assert store.get(f"folder/deep/{number}") == b"x"
            store.delete([f"folder/deep/{number}"])

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(put_and_delete, range(4)))
    assert list(store.list("")) == []


class _IgnoresTheCondition(LocalObjectStore):
    """Ignores the condition, like several S3 clones."""

    def create(self, path: str, data: bytes) -> None:
        self.put(path, data)


def test_the_probe_refuses_a_store_that_ignores_the_condition(tmp_path: Path) -> None:
    store = _IgnoresTheCondition(tmp_path)
    with pytest.raises(ConditionalCreateUnsupportedError):
        probe(store)
    assert list(store.list("")) == []


class _AsksAgain(LocalObjectStore):
    """Stands for a client that loses the answer of a create and asks again, as S3's does."""

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        super().create(path, data)


def test_the_probe_accepts_a_store_after_a_lost_answer_and_leaves_nothing(tmp_path: Path) -> None:
    store = _AsksAgain(tmp_path / "asks again")
    probe(store)
    assert list(store.list("")) == []
    faulty = FaultyStore(tmp_path / "faulty", [Fault.ANSWER_LOST])
    with pytest.raises(StoreUnavailableError):
        probe(faulty)
    assert list(faulty.list("")) == []


@pytest.fixture(scope="module")
def s3_client() -> S3Client:
    """A client of S3 for prepared answers; making one takes as long as all other work of such a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        return S3ObjectStore("bucket", endpoint_url="http://127.0.0.1:9", attempts_max=1)._client


@contextmanager
def answering(client: S3Client, prefix: str = "", **options: Any) -> Iterator[tuple[S3ObjectStore, Stubber]]:
    """A store in S3 with prepared answers; a request without a prepared answer fails the test."""
    store = S3ObjectStore("bucket", prefix, endpoint_url="http://127.0.0.1:9", **options)
    store._opened = (os.getpid(), client)
    with Stubber(client) as stubber:
        yield store, stubber
        stubber.assert_no_pending_responses()


@pytest.fixture
def answers(s3_client: S3Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[S3ObjectStore, Stubber]]:
    monkeypatch.setattr(s3_store, "_CONFLICT_PAUSE_SECONDS", 0.0)
    with answering(s3_client) as answers:
        yield answers


@pytest.fixture
def below_a_prefix(s3_client: S3Client) -> Iterator[tuple[S3ObjectStore, Stubber]]:
    """As `answers`, for a store in a part of its bucket."""
    with answering(s3_client, "/a/b/") as answers:
        yield answers


def body(content: bytes) -> dict[str, Any]:
    return {"Body": StreamingBody(io.BytesIO(content), len(content)), "ContentLength": len(content)}


def test_every_request_to_s3_is_for_the_stores_part_of_the_bucket(
    below_a_prefix: tuple[S3ObjectStore, Stubber], tmp_path: Path
) -> None:
    store, stubber = below_a_prefix
    (tmp_path / "file").write_bytes(b"content")
    digest = {"Key": "a/b/x", "Bucket": "bucket", "ContentMD5": "mgNkuembtIDdJeHwKEyFVQ=="}
    x, modified = {"Bucket": "bucket", "Key": "a/b/x"}, dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, dt.UTC)
    info = {"ContentLength": 7, "LastModified": modified}
    found = ObjectInfo("x", 7, 1_767_323_045_678)
    assert store.url == "s3://bucket/a/b"
    stubber.add_response("put_object", {}, {**digest, "Body": b"content"})
    store.put("x", b"content")
    stubber.add_response("put_object", {}, {**digest, "Body": b"content", "IfNoneMatch": "*"})
    store.create("x", b"content")
    stubber.add_response("get_object", body(b"content"), x)
    assert store.get("x") == b"content"
    stubber.add_response("head_object", info, x)
    assert store.head("x") == found
    stubber.add_response("put_object", {}, {**digest, "Body": ANY})
    stubber.add_response("head_object", info, x)
    store.upload(tmp_path / "file", "x")
    stubber.add_response("get_object", body(b"content"), x)
    store.download("x", tmp_path / "target", size_bytes=7, sha256=hashlib.sha256(b"content").hexdigest())
    assert (tmp_path / "target").read_bytes() == b"content"
    listed = {"Contents": [{"Key": "a/b/x", "Size": 7, "LastModified": modified}]}
    stubber.add_response(
        "list_objects_v2", listed, {"Bucket": "bucket", "Prefix": "a/b/log/", "StartAfter": "a/b/log/1"}
    )
    assert list(store.list("log/", start_after="log/1")) == [found]
    stubber.add_response("head_object", info, x)
    stubber.add_response("copy_object", {}, {"Bucket": "bucket", "Key": "a/b/y", "CopySource": x})
    store.copy("x", "y")
    stubber.add_response(
        "delete_objects", {}, {"Bucket": "bucket", "Delete": {"Objects": [{"Key": "a/b/x"}], "Quiet": True}}
    )
    store.delete(["x"])


def test_uploads_of_parts_that_began_before_a_time_are_ended(
    below_a_prefix: tuple[S3ObjectStore, Stubber],
) -> None:
    store, stubber = below_a_prefix
    before_ms = 1_700_000_000_500
    began = {
        f"{offset_ms}": dt.datetime.fromtimestamp((before_ms + offset_ms) / 1000, dt.UTC)
        for offset_ms in (-90_000_000, -1, 0, 1)
    }
    uploads = [{"Key": f"a/b/job/{id_}", "UploadId": id_, "Initiated": time} for id_, time in began.items()]
    wanted = {"Bucket": "bucket", "Prefix": "a/b/job/"}
    page = {"Uploads": uploads[:1], "IsTruncated": True, "NextKeyMarker": "k", "NextUploadIdMarker": "u"}
    stubber.add_response("list_multipart_uploads", page, wanted)
    stubber.add_response(
        "abort_multipart_upload", {}, {"Bucket": "bucket", "Key": "a/b/job/-90000000", "UploadId": "-90000000"}
    )
    stubber.add_response(
        "list_multipart_uploads", {"Uploads": uploads[1:]}, {**wanted, "KeyMarker": "k", "UploadIdMarker": "u"}
    )
    stubber.add_client_error(
        "abort_multipart_upload",
        "NoSuchUpload",
        http_status_code=404,
        expected_params={"Bucket": "bucket", "Key": "a/b/job/-1", "UploadId": "-1"},
    )
    assert store.remove_unfinished("job/", before_ms) == 1, "the second has ended in the meantime"


def test_an_upload_to_s3_counts_only_if_the_object_has_its_size(
    below_a_prefix: tuple[S3ObjectStore, Stubber], tmp_path: Path
) -> None:
    store, stubber = below_a_prefix
    (tmp_path / "file").write_bytes(b"content")
    stubber.add_response("put_object", {})
    stubber.add_response("head_object", {"ContentLength": 6, "LastModified": dt.datetime.now(dt.UTC)})
    with pytest.raises(StoreUnavailableError, match="another size"):
        store.upload(tmp_path / "file", "x")
    stubber.add_response("put_object", {})
    stubber.add_client_error("head_object", "404", http_status_code=404)
    with pytest.raises(StoreUnavailableError, match="is missing"):
        store.upload(tmp_path / "file", "x")


def test_a_read_from_s3_that_was_damaged_on_the_way_is_repeated(
    below_a_prefix: tuple[S3ObjectStore, Stubber], tmp_path: Path
) -> None:
    store, stubber = below_a_prefix
    sha256, read = hashlib.sha256(b"content").hexdigest(), list[int]()
    reads: list[Callable[[], object]] = [
        lambda: store.download("x", tmp_path / "target", size_bytes=7, sha256=sha256),
        lambda: store.check("x", size_bytes=7, sha256=sha256, on_read=read.append),
    ]
    for once in reads:
        for content in (b"c0ntent", b"conte", b"content"):
            stubber.add_response("get_object", body(content))
        once()
        for _ in range(3):
            stubber.add_response("get_object", body(b"c0ntent"))
        with pytest.raises(ObjectCorruptError):
            once()
    assert (tmp_path / "target").read_bytes() == b"content", "a damaged copy replaces nothing"
    assert sum(read) >= 7
    stubber.add_client_error("get_object", "SlowDown", http_status_code=503)
    stubber.add_response("get_object", body(b"content"))
    assert store.get("x") == b"content"
    stubber.add_client_error("get_object", "NoSuchKey", http_status_code=404)
    with pytest.raises(ObjectNotFoundError):
        store.get("x")


def test_a_store_in_s3_reads_no_object_that_is_larger_than_it_may(s3_client: S3Client) -> None:
    with answering(s3_client, get_bytes_max=7) as (store, stubber):
        stubber.add_response("get_object", body(b"content"))
        assert store.get("x") == b"content"
        stubber.add_response("get_object", body(b"contents"))
        with pytest.raises(ObjectTooLargeError):
            store.get("x")


@pytest.mark.parametrize(("size", "kind"), [(7, None), (6, ObjectTooLargeError)])
def test_a_read_from_s3_gives_its_connection_back(s3_client: S3Client, size: int, kind: Any) -> None:
    bodies = [StreamingBody(io.BytesIO(b"content"), 7) for _ in range(2)]
    closed: list[StreamingBody] = []
    for each in bodies:
        each.close = lambda each=each: closed.append(each)  # type: ignore[method-assign,misc]
    sha256 = hashlib.sha256(b"content").hexdigest()
    with answering(s3_client, get_bytes_max=size) as (store, stubber):
        for each in bodies:
            stubber.add_response("get_object", {"Body": each, "ContentLength": 7})
        with nullcontext() if kind is None else pytest.raises(kind):
            store.get("x")
        store.check("x", size_bytes=7, sha256=sha256, on_read=lambda _: None)
    assert closed == bodies


@pytest.mark.parametrize(
    ("endpoint_url", "style"), [("http://127.0.0.1:9", {"addressing_style": "path"}), (None, None)]
)
def test_each_process_has_a_client_of_its_own_with_the_limits_of_the_store(
    monkeypatch: pytest.MonkeyPatch, endpoint_url: str | None, style: dict[str, str] | None
) -> None:
    made: list[dict[str, Any]] = []

    def client(_: object, service: str, **options: Any) -> dict[str, Any]:
        made.append({"service": service, **options})
        return made[-1]

    monkeypatch.setattr(boto3.session.Session, "client", client)
    monkeypatch.delenv("KEYSCALE_S3_ENDPOINT", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    limits: dict[str, Any] = {"connect_timeout_seconds": 1.5, "read_timeout_seconds": 2.5, "attempts_max": 7}
    store = S3ObjectStore("bucket", endpoint_url=endpoint_url, **limits)
    assert store._client is store._client
    (options,) = made
    assert (options["service"], options["endpoint_url"], options["region_name"]) == ("s3", endpoint_url, "eu-north-1")
    config = options["config"]
    assert (config.connect_timeout, config.read_timeout, config.s3) == (1.5, 2.5, style)
    assert config.retries == {"total_max_attempts": 7, "mode": "standard"}
    again = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own bytes
    assert again._client is not options
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork
    assert store._client is made[2]


def test_every_failure_of_the_client_of_s3_is_one_of_the_stores_errors(
    answers: tuple[S3ObjectStore, Stubber], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: dict[Exception, type[Exception]] = {
        NoCredentialsError(): StoreRefusedError,
        PartialCredentialsError(provider="env", cred_var="key"): StoreRefusedError,
        ProfileNotFound(profile="p"): StoreRefusedError,
        ConnectTimeoutError(endpoint_url="http://x"): StoreUnavailableError,
        OSError(errno.ENOSPC, "full"): StoreFullError,
        OSError(errno.EDQUOT, "full"): StoreFullError,
        OSError(errno.EROFS, "read-only"): StoreFullError,
        ConnectionResetError(errno.ECONNRESET, "reset"): StoreUnavailableError,
        ProtocolError("broken off"): StoreUnavailableError,
        S3UploadFailedError("some part"): StoreUnavailableError,
    }
    store, _ = answers
    failures = iter(kinds)

    def fail(**_: Any) -> None:
        raise next(failures)

    monkeypatch.setattr(store._client, "put_object", fail)
    for failure, kind in kinds.items():
        with pytest.raises(kind) as raised:
            store.put("x", b"")
        assert (type(raised.value), raised.value.__cause__) == (kind, failure)


def test_every_answer_of_s3_is_one_of_the_stores_errors(answers: tuple[S3ObjectStore, Stubber]) -> None:
    store, stubber = answers
    for status, code, kind in (
        (404, "NoSuchBucket", StoreRefusedError),
        (404, "NoSuchKey", ObjectNotFoundError),
        (404, "NotFound", ObjectNotFoundError),
        (412, "PreconditionFailed", ObjectExistsError),
        (409, "OperationAborted", StoreUnavailableError),
        (429, "TooMany", StoreUnavailableError),
        (500, "InternalError", StoreUnavailableError),
        (503, "SlowDown", StoreUnavailableError),
        (501, "NotImplemented", StoreRefusedError),
        (400, "RequestTimeout", StoreUnavailableError),
        (400, "BadDigest", StoreUnavailableError),
        (400, "InvalidAccessKeyId", StoreForbiddenError),
        (403, "Anything", StoreForbiddenError),
        (400, "InvalidArgument", StoreRefusedError),
    ):
        stubber.add_client_error("put_object", code, http_status_code=status)
        with pytest.raises(kind) as raised:
            store.put("x", b"")
        assert type(raised.value) is kind, (status, code)


def conflict(stubber: Stubber, operation: str) -> None:
    stubber.add_client_error(operation, "ConditionalRequestConflict", http_status_code=409)


def test_a_conflict_with_another_writer_is_an_error_that_a_retry_can_help(
    answers: tuple[S3ObjectStore, Stubber], tmp_path: Path
) -> None:
    store, stubber = answers
    (tmp_path / "file").write_bytes(b"content")
    requests: dict[str, Callable[[], object]] = {
        "put_object": lambda: store.put("a", b""),
        "head_object": lambda: store.head("a"),
        "get_object": lambda: store.get("a"),
        "delete_objects": lambda: store.delete(["a"]),
        "list_objects_v2": lambda: list(store.list("a")),
    }
    for operation, request in requests.items():
        for _ in range(3 if operation == "get_object" else 1):
            conflict(stubber, operation)
        with pytest.raises(StoreUnavailableError) as raised:
            request()
        assert raised.value.retryable
    conflict(stubber, "put_object")
    with pytest.raises(StoreUnavailableError):
        store.upload(tmp_path / "file", "a")


def test_a_create_that_conflicts_is_decided_by_what_is_there_afterwards(answers: tuple[S3ObjectStore, Stubber]) -> None:
    store, stubber = answers
    conflict(stubber, "put_object")  # the other writer fails
    stubber.add_client_error("head_object", "NoSuchKey", http_status_code=404)
    stubber.add_response("put_object", {})
    store.create("a", b"mine")
    conflict(stubber, "put_object")  # the other writer succeeds
    stubber.add_response("head_object", {"ContentLength": 1, "LastModified": dt.datetime.now(dt.UTC)})
    with pytest.raises(ObjectExistsError):
        store.create("a", b"mine")
    for _ in range(5):  # nobody ever ends
        conflict(stubber, "put_object")
        stubber.add_client_error("head_object", "NoSuchKey", http_status_code=404)
    with pytest.raises(StoreUnavailableError, match="several times"):
        store.create("a", b"mine")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "a/./b",
        "a\\b",
        "a\x00b",
        "a\nb",
        ".tmp-x",
        "é" * 600,
        "x" * 256,
        "a/" * 64 + "a",
    ],
)
def test_a_path_that_could_leave_the_store_is_refused_everywhere(store: ObjectStore, tmp_path: Path, path: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"")
    for use in (
        lambda: store.put(path, b""),
        lambda: store.create(path, b""),
        lambda: store.get(path),
        lambda: store.head(path),
        lambda: store.upload(source, path),
        lambda: store.download(path, tmp_path / "target"),
        lambda: store.copy(path, "a"),
        lambda: store.delete([path]),
    ):
        with pytest.raises(InvalidObjectPathError):
            use()


@given(st.text(min_size=1, max_size=40))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_path_that_is_accepted_stays_inside_the_root(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    try:
        check_path(path)
    except InvalidObjectPathError:
        return
    store = LocalObjectStore(root)
    store.put(path, b"x")
    assert [info.path for info in store.list("")] == [path]
    store.delete([path])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/somewhere/x",
        "file:",
        "file:///",
        "file://host/x",
        "s3:///x",
        "http://x/y",
        "s3://key:secret@bucket/x",
        "s3://b/x?y=1",
        "file:///secret\0/x",
        "file:///secret%00/x",
        "file:///secret\ud800/x",
        "file:///secret%ed%a0%80/x",
        "file://[secret/x",
    ],
)
def test_other_urls_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(StoreUrlError) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_an_unreachable_store_is_an_error_within_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    away = S3ObjectStore("bucket", endpoint_url="http://127.0.0.1:9", connect_timeout_seconds=0.2, attempts_max=2)
    for use in (
        lambda: away.put("a", b""),
        lambda: away.create("a", b""),
        lambda: away.get("a"),
        lambda: list(away.list("")),
    ):
        with pytest.raises(StoreUnavailableError) as failed:
            use()
        assert failed.value.retryable


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403"])
def test_a_missing_right_is_named_at_once_and_no_outage(
    answers: tuple[S3ObjectStore, Stubber], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    store, stubber = answers
    (tmp_path / "file").write_bytes(b"content")

    def refuse(operation: str) -> None:
        stubber.add_client_error(operation, code, http_status_code=403)

    requests: dict[str, Callable[[], object]] = {
        "put_object": lambda: store.create("a", b""),
        "head_object": lambda: store.head("a"),
        "get_object": lambda: store.get("a"),
        "delete_objects": lambda: store.delete(["a"]),
        "list_objects_v2": lambda: list(store.list("a")),
    }
    for operation, request in requests.items():
        refuse(operation)
        with pytest.raises(StoreForbiddenError, match=f"answered 403 {code}"):
            request()
    monkeypatch.setattr(s3_store, "_SINGLE_PUT_BYTES_MAX", 1)
    refuse("create_multipart_upload")
    with pytest.raises(StoreForbiddenError, match=f"answered 403 {code}"):
        store.upload(tmp_path / "file", "a")


@pytest.mark.parametrize(("code", "kind"), [("AccessDenied", StoreForbiddenError), ("Busy", StoreUnavailableError)])
def test_a_missing_right_on_one_of_many_deleted_objects_is_named(
    answers: tuple[S3ObjectStore, Stubber], code: str, kind: type[Exception]
) -> None:
    store, stubber = answers
    stubber.add_response("delete_objects", {"Errors": [{"Key": "a", "Code": code}]})
    with pytest.raises(kind, match=f"1 of 2 objects could not be deleted: {code}"):
        store.delete(["a", "b"])


def test_a_clock_that_differs_and_a_refused_request_are_no_missing_right(
    answers: tuple[S3ObjectStore, Stubber],
) -> None:
    store, stubber = answers
    stubber.add_client_error("put_object", "RequestTimeTooSkewed", http_status_code=403)
    with pytest.raises(StoreUnavailableError):
        store.put("a", b"")
    stubber.add_client_error("put_object", "InvalidRequest", http_status_code=400)
    with pytest.raises(StoreRefusedError) as refused:
        store.put("a", b"")
    assert type(refused.value) is StoreRefusedError


@pytest.mark.real
def test_a_missing_bucket_is_refused(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with pytest.raises(StoreRefusedError):
        S3ObjectStore("no-such-bucket", endpoint_url=s3_server.endpoint_url).put("a", b"")


UPLOADS = 8
UPLOAD_BYTES = 16 << 20


def test_uploads_at_the_same_time_take_the_memory_of_none_of_their_files(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")  # an S3 server of this process would be measured, too
    assert upload_peak_bytes(store, tmp_path) < UPLOAD_BYTES
    assert [info.size_bytes for info in store.list("large/")] == [UPLOAD_BYTES] * UPLOADS


class _ReadsFilesWhole(LocalObjectStore):
    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        del immutable
        self.put(path, source.read_bytes())


def test_an_upload_that_reads_its_file_whole_would_be_noticed(tmp_path: Path) -> None:
    assert upload_peak_bytes(_ReadsFilesWhole(tmp_path / "store"), tmp_path) >= UPLOAD_BYTES


def upload_peak_bytes(store: ObjectStore, folder: Path) -> int:
    """Uploads files at the same time; returns the most memory that Python's allocator gave out meanwhile."""
    files = [folder / f"{number}.sst" for number in range(UPLOADS)]
    for file in files:
        file.write_bytes(b"abcd" * (UPLOAD_BYTES // 4))
    store.put("first", b"")  # which opens the client
    tracemalloc.start()
    try:
        with ThreadPoolExecutor(UPLOADS) as uploaders:
            list(uploaders.map(lambda file: store.upload(file, f"large/{file.name}"), files))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
