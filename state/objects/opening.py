from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from state.objects.errors import StoreUrlError
from state.objects.local import LocalObjectStore
from state.objects.store import check_prefix

if TYPE_CHECKING:
    from state.objects.store import ObjectStore


def open_store(url: str) -> ObjectStore:
    """The object store at a URL: `file:///absolute/directory` or `s3://bucket/prefix`. Opening contacts nothing.

    Raises:
        StoreUrlError: The URL is neither.
        InvalidObjectPathError: The prefix can be no part of an object's path.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username or parts.password:
        raise StoreUrlError("a store URL has no credentials, query or fragment")
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and parts.path.strip("/"):
        return LocalObjectStore(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        # Here, as its client takes 0.2 s to import: each worker of a job whose store is a directory would pay for it.
        from state.objects.s3 import S3ObjectStore  # noqa: PLC0415

        return S3ObjectStore(parts.netloc, check_prefix(parts.path.strip("/")))
    raise StoreUrlError("a store URL is file:///absolute/directory or s3://bucket/prefix")
