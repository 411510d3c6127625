"""A store is opened by its URL, which has one canonical form."""

from __future__ import annotations

import pytest

from keyscale.state.objects.errors import InvalidObjectPathError, StoreUrlError
from keyscale.state.objects.opening import canonical_url, open_store


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("file:///srv/states/", "file:///srv/states"),
        ("file://localhost/srv/a%20b", "file:///srv/a%20b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket//a/b/", "s3://bucket/a/b"),
    ],
)
def test_every_spelling_of_a_stores_url_has_one_canonical_form(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical
    assert open_store(url).url == canonical
    assert canonical_url(canonical) == canonical


@pytest.mark.parametrize("url", ["file:///srv/states", "s3://bucket/a"])
def test_a_store_is_opened_with_the_limit_of_its_reads(url: str) -> None:
    assert open_store(url).get_bytes_max is None
    assert open_store(url, get_bytes_max=7).get_bytes_max == 7


@pytest.mark.parametrize("url", ["file://host/x", "file:///", "s3:///x", "ftp://x/y", "s3://b/x#y", "s3://u@b/x"])
def test_a_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(StoreUrlError):
        open_store(url)


def test_a_prefix_that_cannot_be_part_of_a_path_is_refused() -> None:
    with pytest.raises(InvalidObjectPathError):
        open_store("s3://bucket/a/../b")
