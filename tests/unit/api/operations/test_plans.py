"""The decisions of a plan: the specification after a change, the settings that it touches, the downtime to expect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.api.job_spec import changed
from keyscale.api.operations.plans import _movement, _sinks, _sources, downtime, settings_changed
from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.jobs.protocol.program import DeclaredSink, DeclaredSource, ProgramDeclaration
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.state.documents.manifest import (
    FileHandle,
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    ShardHandle,
    SnapshotHandle,
    SnapshotKind,
)
from keyscale.state.doors.planning import UNNAMED_SOURCE
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges


def present() -> JobSpec:
    return JobSpec.model_validate(
        {
            "artifact_id": "first",
            "parallelism": 2,
            "parameters": {"input": "/in", "password": "old-secret", "db": {"secret": "DB"}},
            "secrets": ["DB"],
            "spark_conf": {"spark.executor.memory": "1g"},
            "checkpoints": {"interval_ms": 1000, "retained_count": 3},
            "restart": {"type": "none"},
            "batch_interval_ms": 50,
        }
    )


def after(**fields: Any) -> JobSpec:
    return changed(present(), fields)


def test_fields_that_are_not_given_stay_as_they_are() -> None:
    assert settings_changed(present(), after(), runs=True) == []


def test_null_takes_a_restart_strategy_and_a_batch_interval_away() -> None:
    new = after(restart=None, batch_interval_ms=None)
    assert (new.restart, new.batch_interval_ms) == (None, None)


def test_changed_settings_are_named_one_by_one_and_secrets_are_masked() -> None:
    found = settings_changed(
        present(), after(parallelism=4, parameters={"password": "new-secret", "db": "plain"}), runs=True
    )
    assert [(each.name, each.before, each.after) for each in found] == [
        ("parallelism", "2", "4"),
        ("parameters.db", "secret DB", "plain"),
        ("parameters.password", "*****", "*****"),
    ]


def test_artifacts_are_shown_by_name_and_version_and_a_deleted_artifact_by_its_id() -> None:
    known, gone = "a" * 32, "b" * 32
    names = {"second": "flights version 2", known: "shapes version 1"}
    found = settings_changed(present(), after(artifact_id="second", libraries=[known, gone]), runs=True, names=names)
    assert [(each.name, each.before, each.after) for each in found] == [
        ("artifact_id", "first", "flights version 2"),
        ("libraries", "", f"shapes version 1, {gone}"),
    ]
    [named_alike] = settings_changed(present(), after(parameters={"input": "second"}), runs=True, names=names)
    assert named_alike.after == "second"


@pytest.mark.parametrize("runs", [True, False])
def test_only_a_running_job_is_restarted_for_a_setting(runs: bool) -> None:
    [setting] = settings_changed(present(), after(spark_conf={"spark.a": "b"}), runs=runs)
    assert setting.needs_restart == runs


def test_another_parallelism_needs_no_new_driver() -> None:
    [setting] = settings_changed(present(), after(parallelism=4), runs=True)
    assert not setting.needs_restart


def test_settings_that_a_driver_follows_need_no_restart_and_cost_no_downtime() -> None:
    checkpoints = {"interval_ms": 5000, "min_pause_ms": 9, "retained_count": 2, "store_outage_max_ms": 9}
    new = after(checkpoints=checkpoints, restart=None, batch_interval_ms=9, spark_conf={"spark.a": "b"})
    needing = {each.name for each in settings_changed(present(), new, runs=True) if each.needs_restart}
    assert needing == {"checkpoints.store_outage_max_ms", "spark_conf.spark.a"}
    assert downtime([900], runs=True, needs_attempt=False).expected_ms == 0


def test_the_downtime_to_expect_is_the_median_of_the_last_changes_or_says_why_there_is_none() -> None:
    assert downtime([900, 100, 200], runs=True, needs_attempt=True).expected_ms == 200
    assert downtime([], runs=True, needs_attempt=True).reason == "no change of this kind was made while the job ran"
    assert downtime([100], runs=False, needs_attempt=True).expected_ms is None


def sized_manifest(limits: KeyGroupRanges) -> Manifest:
    sizes = (900, 100, *[10] * 6)
    subtasks = tuple(
        SnapshotHandle(
            SubtaskIndex(index),
            own.start,
            own.end,
            BatchId(1),
            "",
            (
                ShardHandle(
                    own.start, own.end, (FileHandle("a", f"{index}/a", sum(sizes[own.start : own.end + 1]), ""),)
                ),
            ),
        )
        for index, own in enumerate(limits)
    )
    operator = OperatorSnapshot(OperatorUid("counts"), len(limits), OperatorDeclaration(), subtasks, (1,) * 8, sizes)
    kind = SnapshotKind.CHECKPOINT
    return Manifest(JobId("job"), CheckpointId(1), kind, Attempt(1), BatchId(1), 3, 8, HashId.SPARK, 0, (operator,))


@pytest.mark.parametrize(
    ("division", "parallelism", "starts", "expected_bytes"),
    [
        ("BY_COUNT", 3, (0, 3, 6), (1010, 30, 20)),
        ("BY_SIZE", 3, (0, 1, 4), (900, 120, 40)),
        ("BY_SIZE", 2, (0, 7), (1050, 10)),  # as many subtasks as before keep their ranges
    ],
)
def test_a_plan_shows_the_bytes_of_each_subtask_with_the_ranges_to_come(
    division: str, parallelism: int, starts: tuple[int, ...], expected_bytes: tuple[int, ...]
) -> None:
    manifest = sized_manifest(KeyGroupRanges(8, (0, 7)))
    facts = SimpleNamespace(
        job=SimpleNamespace(max_parallelism=8, store_url="file:///store"),
        after=after(parallelism=parallelism, key_group_division=division),
        key_group_bytes={"counts": [900, 100, *[10] * 6]},
    )
    stored = SimpleNamespace(manifest=manifest)
    [operator] = _movement(cast("Any", facts), cast("Any", stored), single_host=True).operators
    assert tuple(each.key_group_start for each in operator.subtasks) == starts
    assert tuple(each.expected_bytes for each in operator.subtasks) == expected_bytes


@pytest.mark.parametrize(
    ("known", "declared", "expected"),
    [
        ({}, {"a": ("kafka",)}, [("a", "NEW", "kafka")]),
        ({"a": ("kafka",)}, {}, [("a", "DROPPED", "kafka")]),
        ({"a": ("kafka", "files")}, {"a": ("kafka", "files")}, [("a", "KEPT", "kafka, files")]),
        ({"a": ()}, {"a": ("kafka",)}, [("a", "KEPT", "kafka")]),
        ({"a": ("kafka",)}, {"a": ()}, [("a", "KEPT", "kafka")]),
        ({"a": ()}, {"a": ()}, [("a", "KEPT", None)]),
        ({UNNAMED_SOURCE: ("kafka",)}, {"a": ("kafka",)}, [("a", "KEPT", "kafka")]),
        (
            {UNNAMED_SOURCE: ("kafka",)},
            {"a": ("kafka",), "b": ("rate",)},
            [(UNNAMED_SOURCE, "DROPPED", "kafka"), ("a", "NEW", "kafka"), ("b", "NEW", "rate")],
        ),
        ({"b": ("kafka",)}, {"a": ("kafka",)}, [("a", "NEW", "kafka"), ("b", "DROPPED", "kafka")]),
    ],
)
def test_a_source_is_known_by_its_uid_and_the_only_one_may_get_a_name(
    known: dict[str, Any], declared: dict[str, Any], expected: list[Any]
) -> None:
    sources = tuple(DeclaredSource(uid, kinds) for uid, kinds in declared.items())
    stored = cast("Any", SimpleNamespace(sources=known))
    found = _sources(stored, ProgramDeclaration((), sources, ()))
    assert sorted((each.uid, each.fate, each.kind) for each in found) == sorted(expected)
    assert [each.reason for each in found] == [None] * len(expected)


def test_a_source_of_another_kind_cannot_go_on_where_the_old_one_stopped() -> None:
    stored = cast("Any", SimpleNamespace(sources={"a": ("files", "kafka")}))
    [found] = _sources(stored, ProgramDeclaration((), (DeclaredSource("a", ("kafka",)),), ()))
    reason = "source 'a' was of kind files, kafka and is now kafka"
    assert (found.fate, found.kind, found.reason) == ("INCOMPATIBLE", "kafka", reason)


def test_a_sink_that_is_dropped_says_whether_a_batch_of_it_is_unpublished() -> None:
    declaration = ProgramDeclaration((), (), (DeclaredSink("kept", "FileSink"), DeclaredSink("new", "KafkaSink")))
    found = _sinks({"gone", "kept", "lost"}, declaration, frozenset({"kept", "lost"}))
    assert {each.uid: (each.fate, each.kind, each.reason is not None) for each in found} == {
        "gone": ("DROPPED", None, False),
        "kept": ("KEPT", "FileSink", False),
        "lost": ("DROPPED", None, True),
        "new": ("NEW", "KafkaSink", False),
    }
