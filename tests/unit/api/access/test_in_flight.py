"""Long requests have places, of which a user has only some, and a request that fails gives its place back."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from keyscale.api.access.in_flight import InFlight
from keyscale.api.errors import TooManyInFlightError


def test_a_user_has_some_of_the_places_and_all_users_no_more_than_there_are() -> None:
    plans = InFlight("plan", "plans", 3, 2)
    with ExitStack() as held:
        for user in ("ann", "ann"):
            held.enter_context(plans.place(user))
        with pytest.raises(TooManyInFlightError, match=r"^the limit is 2 plans of a user at once$"):
            held.enter_context(plans.place("ann"))
        held.enter_context(plans.place("ben"))
        with pytest.raises(TooManyInFlightError, match=r"^the limit is 3 plans at once$"):
            held.enter_context(plans.place("cid"))
    with plans.place("cid"):
        """All have given their places back."""


def test_each_request_gives_its_own_place_back_also_if_it_fails() -> None:
    reads = InFlight("read", "reads", 8, 2)
    with reads.place("ann"):
        with suppress(ZeroDivisionError), reads.place("ann"):
            raise ZeroDivisionError
        with reads.place("ann"), pytest.raises(TooManyInFlightError), reads.place("ann"):
            pytest.fail("a third place")
    assert not reads._of_users, "no user is remembered"
