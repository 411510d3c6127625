"""Turns of drivers to start, for any starts that come, begin and end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keyscale.api.lifecycle.start_line import TOGETHER_MS, StartKey, WantedStart, places_of


@st.composite
def lines(draw: st.DrawFn) -> list[WantedStart]:
    keys = draw(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 3)), unique=True, max_size=12))
    return [
        WantedStart(
            job,
            attempt,
            draw(st.integers(0, 3 * TOGETHER_MS)),
            job_created_at_ms=ord(job),
            is_down=draw(st.booleans()),
        )
        for job, attempt in keys
    ]


def carried_out(line: list[WantedStart], at_once: int) -> list[StartKey]:
    """Carries all starts of a line out, one round after the other; returns their order."""
    order: list[StartKey] = []
    while waiting := [start for start in line if start.key not in order]:
        order += [key for key, place in places_of(waiting, begun=0, at_once=at_once).items() if place == 0]
    return order


@given(lines(), st.integers(0, 6), st.integers(1, 6))
def test_as_many_starts_begin_as_the_host_has_room_for(line: list[WantedStart], begun: int, at_once: int) -> None:
    places = places_of(line, begun=begun, at_once=at_once)
    beginning = sum(place == 0 for place in places.values())
    assert beginning == min(len(line), max(0, at_once - begun))
    assert sorted(place for place in places.values() if place) == list(range(1, len(line) - beginning + 1))


@given(lines(), st.integers(1, 4))
def test_each_start_begins_once_and_the_number_of_rooms_does_not_change_the_order(
    line: list[WantedStart], at_once: int
) -> None:
    order = carried_out(line, at_once)
    assert order == carried_out(line, 1)
    assert sorted(order) == sorted(start.key for start in line)


@given(lines(), lines())
def test_a_start_that_is_requested_later_overtakes_only_within_its_minute(
    line: list[WantedStart], more: list[WantedStart]
) -> None:
    before = {start.key for start in line}
    later = [start for start in more if start.key not in before]
    places = places_of([*line, *later], begun=0, at_once=0)
    for first in line:
        for second in later:
            if first.wanted_at_ms // TOGETHER_MS < second.wanted_at_ms // TOGETHER_MS:
                assert places[first.key] < places[second.key]


@given(lines())
def test_of_starts_that_are_requested_together_jobs_that_are_down_come_first_and_then_the_oldest(
    line: list[WantedStart],
) -> None:
    together = [WantedStart(s.job_id, s.attempt, 0, s.job_created_at_ms, is_down=s.is_down) for s in line]
    places = places_of(together, begun=0, at_once=0)
    line_of = sorted(together, key=lambda start: places[start.key])
    ages = [(not start.is_down, start.job_created_at_ms) for start in line_of]
    assert ages == sorted(ages)
