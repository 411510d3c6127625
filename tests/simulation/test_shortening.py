"""A history that fails is shown with the events alone that make it fail."""

from __future__ import annotations

from tests.simulation.generator import data_plane_history
from tests.simulation.history import Event, History
from tests.simulation.shortening import shortened

EVENTS = tuple(Event("records", 1.0, {"keys": [number]}) for number in range(30))


def test_the_events_that_matter_are_left_and_the_time_that_the_others_took() -> None:
    def fails(history: History) -> bool:
        keys = [event.given["keys"][0] for event in history.events]
        return 7 in keys and 19 in keys

    short = shortened(History(1, EVENTS), fails)
    assert [event.given["keys"][0] for event in short.events] == [7, 19]
    assert [event.after for event in short.events] == [8.0, 12.0]


def test_a_history_is_read_as_it_was_written() -> None:
    history = data_plane_history(3)
    assert History.read(history.text()) == history
