"""The demo's verdict must fail for every way in which a result can be wrong."""

from __future__ import annotations

import copy
import random
from collections import Counter, defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.deploy.demo.reference import compare, fold
from keyscale.deploy.demo.reports import MAX_FILES_LATE, Delivery, delivered, departure_reports, plan_deliveries

if TYPE_CHECKING:
    from collections.abc import Callable


@cache  # not while tests are collected: it reads all flights
def reports() -> list[dict[str, Any]]:
    return departure_reports(3000)


@cache
def right_rows() -> list[dict[str, Any]]:
    """The rows of a right job. Any order of aircraft is right, so the reports are shuffled first."""
    shuffled = random.Random(3).sample(reports(), len(reports()))
    history: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    rows = []
    for report in shuffled:
        history[report["tailnum"]].append(report)
        totals = fold(history[report["tailnum"]])[report["tailnum"]]
        rows.append(
            {
                "report_id": report["report_id"],
                "tailnum": report["tailnum"],
                "flights": totals.flights,
                "dep_delay_sum": totals.dep_delay_sum,
                "last_airport": totals.last_airport,
                "dest": report["dest"],
                "dest_flights": totals.by_dest[report["dest"]],
            }
        )
    return rows


def failed_checks(rows: list[dict[str, Any]]) -> set[str]:
    return {check.name for check in compare(reports(), rows) if not check.holds}


def test_right_rows_in_any_order_pass_every_check() -> None:
    assert failed_checks(right_rows()) == set()


def lose_one(rows: list[dict[str, Any]]) -> None:
    rows.pop(1234)


def double_one(rows: list[dict[str, Any]]) -> None:
    rows.append(rows[77])


def lose_one_and_double_another(rows: list[dict[str, Any]]) -> None:
    rows[500] = rows[501]


def count_one_wrongly(rows: list[dict[str, Any]]) -> None:
    rows[900]["flights"] += 1


def sum_wrongly(rows: list[dict[str, Any]]) -> None:
    final_row_of(rows, rows[10]["tailnum"])["dep_delay_sum"] += 1


def forget_the_last_airport(rows: list[dict[str, Any]]) -> None:
    final_row_of(rows, rows[10]["tailnum"])["last_airport"] = "???"


def count_a_destination_wrongly(rows: list[dict[str, Any]]) -> None:
    rows[700]["dest_flights"] += 1


def mix_up_two_aircraft(rows: list[dict[str, Any]]) -> None:
    rows[20]["tailnum"] = "N00000"


def invent_one(rows: list[dict[str, Any]]) -> None:
    rows[40]["report_id"] = "nobody sent this"


def final_row_of(rows: list[dict[str, Any]], tailnum: str | None) -> dict[str, Any]:
    return max((row for row in rows if row["tailnum"] == tailnum), key=lambda row: row["flights"])


@pytest.mark.parametrize(
    "spoil",
    [
        lose_one,
        double_one,
        lose_one_and_double_another,
        count_one_wrongly,
        sum_wrongly,
        forget_the_last_airport,
        count_a_destination_wrongly,
        mix_up_two_aircraft,
        invent_one,
    ],
)
def test_a_single_wrong_row_fails_the_verdict(spoil: Callable[[list[dict[str, Any]]], None]) -> None:
    rows = copy.deepcopy(right_rows())
    spoil(rows)
    assert failed_checks(rows)


def test_an_empty_sink_fails_the_verdict() -> None:
    assert failed_checks([])


@pytest.mark.parametrize(
    ("limit", "flights", "unknown_aircraft", "cancelled"),
    [(3000, 3000, 5, 24), pytest.param(None, 336_776, 2_512, 8_255, marks=pytest.mark.exhaustive)],
)
def test_the_table_is_delivered_with_its_unknown_aircraft_and_cancelled_flights(
    limit: int | None, flights: int, unknown_aircraft: int, cancelled: int
) -> None:
    found = departure_reports(limit)
    assert len(found) == flights
    assert len({report["report_id"] for report in found}) == flights
    assert sum(report["tailnum"] is None for report in found) == unknown_aircraft
    assert sum(report["dep_delay"] is None for report in found) == cancelled
    assert [report["sched_ms"] for report in found] == sorted(report["sched_ms"] for report in found)


def test_every_report_is_delivered_once_and_a_tenth_of_them_again_in_a_later_file() -> None:
    deliveries = plan_deliveries(reports=50_000, files=60, seed=7)
    first_in = {index: file for file, delivery in enumerate(deliveries) for index in delivery.first}
    assert Counter(index for delivery in deliveries for index in delivery.first) == Counter(range(50_000))
    repeats = [(index, file) for file, delivery in enumerate(deliveries) for index in delivery.again]
    assert all(file > first_in[index] for index, file in repeats)
    assert 0.095 < len(repeats) / 50_000 < 0.105
    assert deliveries == plan_deliveries(reports=50_000, files=60, seed=7)
    assert deliveries != plan_deliveries(reports=50_000, files=60, seed=8)


def test_a_file_holds_exactly_its_planned_reports() -> None:
    for delivery in plan_deliveries(len(reports()), files=5, seed=7):
        records = delivered(reports(), delivery, seed=7)
        planned = [reports()[index]["report_id"] for index in (*delivery.first, *delivery.again)]
        assert Counter(record["report_id"] for record in records) == Counter(planned)


def test_a_report_comes_again_at_most_some_files_later_and_the_last_ones_in_a_file_of_their_own() -> None:
    deliveries = plan_deliveries(reports=20_000, files=40, seed=3)
    first_in = {index: file for file, delivery in enumerate(deliveries) for index in delivery.first}
    late = Counter(file - first_in[index] for file, delivery in enumerate(deliveries) for index in delivery.again)
    assert late.keys() == set(range(1, MAX_FILES_LATE + 1))
    assert (len(deliveries), deliveries[-1].first) == (41, ())
    assert plan_deliveries(reports=1, files=1, seed=7) == [Delivery((0,), ())], "without repeats there is no such file"


def test_the_reports_of_a_file_are_in_the_order_of_time_with_the_repeats_among_them() -> None:
    given = [{"number": number} for number in range(100)]
    delivery = Delivery(tuple(range(50, 100)), tuple(range(20)))
    for seed in (1, 2):
        numbers = [record["number"] for record in delivered(given, delivery, seed)]
        assert [number for number in numbers if number >= 50] == list(range(50, 100))
        places = [place for place, number in enumerate(numbers) if number < 50]
        assert (len(places), places[0] < 20, places[-1] > 40) == (20, True, True)
    assert delivered(given, delivery, 1) == delivered(given, delivery, 1) != delivered(given, delivery, 2)
