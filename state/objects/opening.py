"""Opens an object store by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from .errors import StoreUrlError
from .local_store import LocalObjectStore
from .object_store import check_prefix

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from .object_store import ObjectStore


def canonical_url(url: str) -> str:
    """Returns a store's URL in the canonical form of locations.

    Contacts no server.

    Raises:
        StoreUrlError: The URL has another form.
    """
    parts = _parts(url)
    if parts.scheme == "s3":
        return f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/")
    return open_store(url).url


def open_store(url: str, *, get_bytes_max: int | None = None) -> ObjectStore:
    """Returns the object store at a `file://` or `s3://` URL.

    Contacts no server.

    Args:
        url: `file:///absolute/directory` or `s3://bucket/prefix`.
        get_bytes_max: The largest object that `get` returns, for a process that reads what others write; None: no
            limit.

    Raises:
        StoreUrlError: The URL has another form.
        InvalidObjectPathError: The prefix cannot be part of an object's path.
    """
    parts = _parts(url)
    if parts.query or parts.fragment or parts.username or parts.password:
        raise StoreUrlError("a store URL has no credentials, query or fragment")
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and parts.path.strip("/"):
        return LocalObjectStore(Path(unquote(parts.path)), get_bytes_max=get_bytes_max)
    if parts.scheme == "s3" and parts.netloc:
        # Imported here because importing the S3 client takes 0.2 s, which workers with a local store would pay for
        # nothing.
        from .s3_store import S3ObjectStore  # noqa: PLC0415

        return S3ObjectStore(parts.netloc, check_prefix(parts.path.strip("/")), get_bytes_max=get_bytes_max)
    raise StoreUrlError("a store URL is file:///absolute/directory or s3://bucket/prefix")


def _parts(url: str) -> SplitResult:
    try:
        if "\0" not in unquote(url, errors="strict").encode().decode():  # text has no surrogates
            return urlsplit(url)
    except ValueError:
        pass
    raise StoreUrlError("a store URL is text without NUL, of the form file:///absolute/directory or s3://bucket/prefix")
