"""The claims of an issuer's user give the user a role and a scope."""

from __future__ import annotations

from keyscale.api.access.openid import claims_at, looks_issued, role_of, scope_of
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.vocabulary import Role

ROLES = {"platform": Role.ADMIN, "streams": Role.OPERATOR, "everybody": Role.VIEWER}
BILLING, LIVE = ("team", "billing"), ("stage", "live")
JOB_LABELS = (("streams", None), ("everybody", None), ("billing", BILLING), ("live", LIVE))


def test_a_claim_may_be_a_list_a_text_or_nested() -> None:
    assert claims_at({"groups": ["a", "b", 1]}, "groups") == {"a", "b"}
    assert claims_at({"scope": "a b"}, "scope") == {"a", "b"}
    assert claims_at({"realm_access": {"roles": ["a"]}}, "realm_access.roles") == {"a"}
    assert claims_at({"https://example.com/roles": ["a"]}, "https://example.com/roles") == {"a"}
    for claims in ({}, {"groups": None}, {"groups": 1}, {"groups": {"a": 1}}):
        assert claims_at(claims, "groups") == frozenset()


def test_of_several_roles_the_highest_counts_and_a_star_is_everybody() -> None:
    assert role_of(frozenset({"everybody", "streams"}), ROLES) is Role.OPERATOR
    assert role_of(frozenset({"strangers"}), ROLES) is None
    assert role_of(frozenset(), {"*": Role.VIEWER}) is Role.VIEWER
    assert role_of(frozenset({"platform"}), {"*": Role.VIEWER, **ROLES}) is Role.ADMIN


def test_a_scope_has_the_labels_of_all_values_and_a_star_is_everybody_or_every_job() -> None:
    assert scope_of(frozenset({"billing", "live"}), JOB_LABELS) == JobScope(any_labels=frozenset({BILLING, LIVE}))
    assert scope_of(frozenset({"billing", "streams"}), JOB_LABELS) == EVERYTHING
    assert scope_of(frozenset({"guests"}), JOB_LABELS) is None
    assert scope_of(frozenset({"guests"}), (("*", LIVE),)) == JobScope(any_labels=frozenset({LIVE}))
    assert scope_of(frozenset(), ()) == EVERYTHING


def test_only_a_token_of_three_parts_looks_issued() -> None:
    assert [looks_issued(value) for value in ("a.b.c", "a.b", "abc", "a.b.c.d")] == [True, False, False, False]
