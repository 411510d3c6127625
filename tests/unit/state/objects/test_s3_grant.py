"""A grant is a policy of its prefixes alone; characters of patterns in names stand for themselves."""

from __future__ import annotations

from keyscale.state.objects.s3_grant import Grant


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
