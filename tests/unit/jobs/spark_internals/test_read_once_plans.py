"""A plan reads each partition once if each of its nodes does, and the plan has one leaf."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.jobs.spark_internals.read_once import reads_once


def node(name: str, *children: Any, **facts: Any) -> Any:
    """Returns a node of a plan, as the JVM shows it."""
    list_of = SimpleNamespace(size=lambda: len(children), apply=lambda at: children[at])
    answers = {fact: lambda value=value: value for fact, value in facts.items()}
    return SimpleNamespace(nodeName=lambda: name, children=lambda: list_of, **answers)


def partitioning(name: str) -> Any:
    return SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: name))


def step(plan: Any) -> Any:
    return SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: SimpleNamespace(optimizedPlan=lambda: plan)))


LEAF = node("LogicalRDD")


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (LEAF, True),
        (node("Project", node("Filter", LEAF)), True),
        (node("Project", node("GlobalLimit", LEAF)), False),
        (node("GlobalLimit", node("Project", LEAF)), False),
        (node("Project", LEAF, LEAF), False),
        (node("Project"), False),
        (node("Sort", LEAF, **{"global": False}), True),
        (node("Sort", LEAF, **{"global": True}), False),
        (node("Repartition", LEAF, shuffle=True), True),
        (node("Repartition", LEAF, shuffle=False), False),
        (node("RepartitionByExpression", LEAF, partitioning=partitioning("HashPartitioning")), True),
        (node("RepartitionByExpression", LEAF, partitioning=partitioning("RangePartitioning")), False),
        (node("Repartition", LEAF), False),
    ],
)
def test_each_node_must_read_each_partition_once(plan: Any, expected: bool) -> None:
    assert reads_once(cast("Any", step(plan))) is expected
