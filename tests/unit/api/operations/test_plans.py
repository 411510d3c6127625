"""The decisions of a plan: the specification after a change, the settings that it touches, the downtime to expect."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.errors import ChangeIncompatibleError
from keyscale.api.job_spec import changed
from keyscale.api.operations import plans
from keyscale.api.operations.plans import _movement, _sinks, _sources, downtime, settings_changed
from keyscale.api.operations.schemas.change_plan import DowntimePlan, EndpointPlan, MovementPlan, SettingPlan
from keyscale.db.models import Artifact, Checkpoint, Job, Revision
from keyscale.db.models import Attempt as AttemptRow
from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.jobs.protocol.messages import DriverMetrics, GraphNode
from keyscale.jobs.protocol.program import DeclaredSink, DeclaredSource, ProgramAnswer, ProgramDeclaration
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
from keyscale.vocabulary import DesiredState, Fate, JobStatus, OperationKind, RescaleMode

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION: Any = None


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


@pytest.mark.parametrize("single_host", [True, False])
def test_the_files_that_move_are_shown_with_their_subtasks_and_their_skew(
    monkeypatch: pytest.MonkeyPatch, *, single_host: bool
) -> None:
    limits = KeyGroupRanges(8, (0, 7))
    parts = [
        SimpleNamespace(index=index, key_groups=own, state_bytes=10 + index, files=20 + index, from_subtasks=(index, 7),
                        other_bytes=30 + index, clipped_shards=40 + index)
        for index, own in enumerate(limits)
    ]  # fmt: skip
    manifest = sized_manifest(limits)
    monkeypatch.setattr(plans, "chosen_ranges", lambda *_, **__: limits)
    monkeypatch.setattr(plans, "movements", lambda subtasks, _: parts if len(subtasks) == 2 else [])
    uneven = SimpleNamespace(ratio=1.23456, largest_key_group=5, largest_key_group_bytes=77)
    monkeypatch.setattr(plans, "skew", lambda sizes, ranges: uneven if (len(sizes), ranges) == (8, limits) else None)
    monkeypatch.setattr(plans, "size_bytes_of", lambda operators: 90 if operators == list(manifest.operators) else 0)
    facts: Any = SimpleNamespace(
        job=SimpleNamespace(max_parallelism=8, store_url="file:///store"),
        after=after(),
        key_group_bytes={"counts": [900, 100, *[10] * 6]},
    )
    moved = [0, 0] if single_host else [30, 31]
    subtasks = [
        {
            "index": index,
            "key_group_start": own.start,
            "key_group_end": own.end,
            "state_bytes": 10 + index,
            "files": 20 + index,
            "from_subtasks": [index, 7],
            "moved_bytes": moved[index],
            "clipped_shards": 40 + index,
            "expected_bytes": 1050 if index == 0 else 10,
        }
        for index, own in enumerate(limits)
    ]
    operator = {
        "uid": "counts",
        "state_bytes": 90,
        "moved_bytes": sum(moved),
        "subtasks": subtasks,
        "skew_ratio": 1.235,
        "largest_key_group": 5,
        "largest_key_group_bytes": 77,
    }
    stored: Any = SimpleNamespace(manifest=manifest)
    plan = {"checkpoint_location": f"file:///store/{manifest.path}", "same_host": single_host}
    plan |= {"state_bytes": 90, "moved_bytes": sum(moved), "operators": [operator]}
    assert _movement(facts, stored, single_host=single_host).model_dump() == plan
    facts.key_group_bytes = {"counts": [1] * 7}
    [unsized] = _movement(facts, stored, single_host=single_host).operators
    assert (unsized.skew_ratio, unsized.largest_key_group, unsized.largest_key_group_bytes) == (None,) * 3
    assert [each.expected_bytes for each in unsized.subtasks] == [None, None]


def why_not_live(job_id: str, parallelism: int) -> dict[str, str]:
    return {"code": job_id, "message": f"for {parallelism}"}


class Database:
    """The rows of a job, and what a plan asks of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job = Job(
            id="job", store_url="file:///store", max_parallelism=8, hash_id="spark", desired=DesiredState.RUNNING
        )
        self.noted: list[Any] = []
        self.latest: Checkpoint | None = Checkpoint(checkpoint_id=7, external_path="file:///store/7")
        sink, source = GraphNode(uid="out", kind="SINK", inputs=["in"]), GraphNode(uid="in", kind="SOURCE")
        self.attempt: AttemptRow | None = AttemptRow(metrics=DriverMetrics(graph=[source, sink]).model_dump())
        parts = [self.part("b", 4, [5, 6]), self.part("a", 2, [3]), self.part("a", 0, [1, 2])]
        rows: dict[Any, dict[str, Any]] = {
            plans: {
                "check_specification": lambda _, spec: self.noted.append(("checked", spec)),
                "require_program": lambda *of: self.noted.append(("program", *of[2:])),
                "require_covered": lambda *of: self.noted.append(("covered", *of[1:])),
                "rescale_way": lambda _, job, spec: (RescaleMode.STANDBY, why_not_live(job.id, spec.parallelism)),
            },
            plans.artifacts: {
                "find": lambda _, name: Artifact(id=name),
                "find_all": lambda _, ids: {name: Artifact(id=name, name=f"of {name}", version=4) for name in ids},
            },
            plans.checkpoints: {
                "latest_completed": lambda _, job_id: {"job": self.latest}[job_id],
                "subtasks": lambda _, *of: {("job", 7): parts}[of],
            },
            plans.operations: {"last_downtimes": lambda _, *of: self.noted.append(("downtimes", *of)) or [5]},
            plans.attempts: {"latest": lambda _, job_id: {"job": self.attempt}[job_id]},
        }
        for module, functions in rows.items():
            for name, function in functions.items():
                monkeypatch.setattr(module, name, function)

    def part(self, uid: str, start: int, sizes: list[int]) -> Any:
        return SimpleNamespace(operator_uid=uid, key_group_start=start, key_group_bytes=sizes)

    def facts(self, wanted: JobSpec) -> Any:
        unused: Any = None
        user: Any = "user"
        return plans._facts(SESSION, unused, user, self.job, present(), wanted)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    return Database(monkeypatch)


@pytest.mark.parametrize(
    ("fields", "desired", "kind", "mode", "needs_program"),
    [
        ({"parallelism": 4}, DesiredState.RUNNING, OperationKind.RESCALE, RescaleMode.STANDBY, False),
        ({"parallelism": 4}, DesiredState.STOPPED, OperationKind.RESCALE, None, False),
        ({"parallelism": 4, "batch_interval_ms": 9}, DesiredState.RUNNING, OperationKind.UPGRADE, None, False),
        ({"artifact_id": "second"}, DesiredState.RUNNING, OperationKind.UPGRADE, None, True),
        ({"libraries": ["a" * 32]}, DesiredState.RUNNING, OperationKind.UPGRADE, None, True),
    ],
)
def test_a_plan_reads_the_newest_snapshot_and_the_changes_of_its_kind(  # noqa: PLR0917 - a table
    database: Database,
    fields: dict[str, Any],
    desired: DesiredState,
    kind: OperationKind,
    mode: RescaleMode | None,
    needs_program: bool,
) -> None:
    database.job.desired = desired
    wanted = after(**fields)
    facts = database.facts(wanted)
    program = [("program", "user", wanted)] if needs_program else []
    covered = ("covered", "user", present(), wanted)
    assert database.noted == [("checked", wanted), *program, covered, ("downtimes", "job", kind, mode, 5)]
    assert (facts.job, facts.before, facts.after, facts.program.id) == (
        database.job, present(), wanted, wanted.artifact_id
    )  # fmt: skip
    assert (facts.location, facts.key_group_bytes) == ("file:///store/7", {"a": [1, 2, 3], "b": [5, 6]})
    assert (facts.rescale_mode, facts.not_live) == (mode, None if mode is None else why_not_live("job", 4))
    used = {"first", wanted.artifact_id, *wanted.libraries}
    assert facts.artifact_names == {name: f"of {name} version 4" for name in used}
    assert (facts.downtimes_ms, facts.sinks) == ([5], {"out"})
    database.latest = database.attempt = None
    never = database.facts(wanted)
    assert (never.location, never.key_group_bytes, never.sinks) == (None, {}, frozenset())


@pytest.mark.parametrize(
    ("desired", "status", "master", "unpublished", "fields"),
    [
        (DesiredState.RUNNING, JobStatus.RUNNING, "local", frozenset(), {"parallelism": 4}),
        (DesiredState.RUNNING, JobStatus.RESTARTING, "spark://m:1", frozenset({"last"}), {"parameters": {"a": "b"}}),
        (DesiredState.STOPPED, JobStatus.STOPPED, "local[4]", frozenset({"last"}), {"batch_interval_ms": 9}),
    ],
)
def test_the_answer_of_a_plan_is_of_the_job_as_it_runs(  # noqa: PLR0917 - a table
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    desired: DesiredState,
    status: JobStatus,
    master: str,
    unpublished: frozenset[str],
    fields: dict[str, Any],
) -> None:
    database.job.desired, database.job.status = desired, status
    facts = database.facts(after(**fields))
    asked: list[Any] = []
    moves = MovementPlan(checkpoint_location=None, same_host=True, state_bytes=1, moved_bytes=2, operators=[])
    expected = DowntimePlan(expected_ms=3, reason=None, samples_ms=[4])
    setting = SettingPlan(name="n", before="1", after="2", needs_restart=False)
    sink = EndpointPlan(uid="gone", fate=Fate.DROPPED, reason="the last batch")

    def note(answer: Any) -> Any:
        return lambda *of, **how: asked.append((*of, how)) or answer

    monkeypatch.setattr(plans, "_operators", note([]))
    monkeypatch.setattr(plans, "_sources", note([]))
    monkeypatch.setattr(plans, "_sinks", note([sink]))
    monkeypatch.setattr(plans, "settings_changed", note([setting]))
    monkeypatch.setattr(plans, "_movement", note(moves))
    monkeypatch.setattr(plans, "downtime", note(expected))
    declaration = ProgramDeclaration((), (), ())
    context: Any = SimpleNamespace(settings=SimpleNamespace(spark_master=master))
    stored: Any = SimpleNamespace(sinks=frozenset({"known"}), resume=SimpleNamespace(sinks={"last": "token"}))
    runs, is_followed = desired is DesiredState.RUNNING, "batch_interval_ms" in fields
    plan = plans._answer(facts, stored, ProgramAnswer(declaration), context)
    assert asked == [
        (stored, declaration, {}),
        (stored, declaration, {}),
        ({"out", "known"}, declaration, unpublished, {}),
        (facts.before, facts.after, {"runs": runs, "names": facts.artifact_names}),
        (facts, stored, {"single_host": master != "spark://m:1"}),
        ([5], {"runs": runs, "needs_attempt": not is_followed}),
    ]
    assert plan.model_dump(exclude={"movement", "downtime", "settings", "sinks", "not_live"}) == {
        "job_id": "job",
        "compatible": True,
        "requires_allow_non_restored_state": True,
        "program_loaded": True,
        "failure": None,
        "from_parallelism": 2,
        "to_parallelism": 4 if "parallelism" in fields else 2,
        "max_parallelism": 8,
        "hash_id": "spark",
        "operators": [],
        "sources": [],
        "rescale_mode": RescaleMode.STANDBY if "parallelism" in fields else None,
    }
    assert (plan.movement, plan.downtime, plan.settings, plan.sinks) == (moves, expected, [setting], [sink])
    unloaded = plans._answer(facts, stored, None, context)
    assert (unloaded.program_loaded, unloaded.operators, unloaded.sources, unloaded.sinks) == (False, [], [], [])


class Takeover:
    """A job that is about to be changed, and the answer of its plan."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        self.known: Any = None
        self.failure: Any = None
        self.problems: list[str] = []
        self.dropped: list[str] = []
        job = Job(id="job")
        revision = Revision(number=1, spec=present().given())
        monkeypatch.setattr(plans, "require_job", lambda _, name: {"flights": job}[name])
        monkeypatch.setattr(plans.revisions, "current", lambda _, of: {"job": revision}[of.id])
        monkeypatch.setattr(plans, "_facts", lambda *of: of[2:])
        monkeypatch.setattr(plans, "_key", lambda facts: facts[-1].parameters)
        monkeypatch.setattr(plans, "_load", lambda *_: self.steps.append("loaded") or "the program")
        monkeypatch.setattr(plans, "_read_stored", lambda *_: "what is stored")
        monkeypatch.setattr(plans, "_answer", self.answer)
        self.job = job
        self.context: Any = SimpleNamespace(
            reads=lambda: nullcontext(SESSION),
            plans=self,
            programs=SimpleNamespace(recall=lambda key: self.known if key == {"a": "b"} else None),
        )

    @contextmanager
    def place(self, user_id: str) -> Iterator[None]:
        self.steps.append(("placed", user_id))
        yield
        self.steps.append("given back")

    def answer(self, facts: Any, stored: str, loaded: Any, _: Any) -> Any:
        assert (facts[1], facts[2], stored) == (self.job, present(), "what is stored")
        self.steps.append(loaded)
        return SimpleNamespace(
            failure=self.failure,
            problems=lambda: list(self.problems),
            requires_allow_non_restored_state=bool(self.dropped),
            dropped=lambda: self.dropped,
        )

    def refusal(self, *, allows: bool = False, **fields: Any) -> str | None:
        user: Any = SimpleNamespace(id="me")
        wanted = after(**(fields or {"parameters": {"input": None, "password": None, "db": None, "a": "b"}}))
        self.steps.clear()
        try:
            plans.require_takeover(self.context, user, "flights", wanted, allow_non_restored_state=allows)
        except ChangeIncompatibleError as error:
            return error.detail
        return None


@pytest.fixture
def takeover(monkeypatch: pytest.MonkeyPatch) -> Takeover:
    return Takeover(monkeypatch)


def test_a_change_that_loses_state_needs_permission_and_one_that_cannot_take_it_over_is_refused(
    takeover: Takeover,
) -> None:
    assert takeover.refusal() is None
    assert takeover.steps == [("placed", "me"), "loaded", "the program", "given back"]
    takeover.known = "what was planned"
    assert takeover.refusal() is None
    assert takeover.steps == [("placed", "me"), "what was planned", "given back"]
    takeover.dropped = ["a", "b"]
    lost = "the state or output of 'a', 'b' would be lost, which allow_non_restored_state has to allow"
    assert takeover.refusal() == lost
    assert takeover.refusal(allows=True) is None
    takeover.problems = ["no such type"]
    assert (takeover.refusal(), takeover.refusal(allows=True)) == (f"no such type; {lost}", "no such type")
    takeover.failure = "the script raises"
    assert takeover.refusal() is None, "its declarations are unknown"


@pytest.mark.parametrize("fields", [{"parallelism": 4}, {"spark_conf": {"spark.a": "b"}}, {"batch_interval_ms": 7}])
def test_a_setting_that_the_state_does_not_depend_on_is_not_planned_first(
    takeover: Takeover, fields: dict[str, Any]
) -> None:
    takeover.problems = ["no such type"]
    assert (takeover.refusal(**fields), takeover.steps) == (None, [])
    for changed_one in ({"artifact_id": "second"}, {"libraries": ["a" * 32]}):
        assert takeover.refusal(**fields, **changed_one) == "no such type"


@pytest.mark.parametrize("failure", [None, {"code": "X"}])
def test_a_program_is_loaded_as_its_jobs_user_and_its_declaration_is_remembered(
    database: Database, monkeypatch: pytest.MonkeyPatch, failure: dict[str, Any] | None
) -> None:
    facts, kept = database.facts(after(parallelism=4)), list[Any]()
    answer = ProgramAnswer(failure=failure)
    context: Any = SimpleNamespace(
        launcher=SimpleNamespace(isolation=SimpleNamespace(holder=lambda job: ("holder", job.id))),
        programs=SimpleNamespace(remember=lambda *of: kept.append(of)),
    )

    def load(*of: Any, **how: Any) -> ProgramAnswer:
        assert of == (context, facts.program, facts.after)
        assert how == {"max_parallelism": 8, "holder": ("holder", "job")}
        return answer

    monkeypatch.setattr(plans, "load_program", load)
    assert plans._load(context, facts) is answer
    assert kept == ([(plans._key(facts), answer)] if failure is None else [])
    other = database.facts(after(parallelism=3))
    assert plans._key(other) != plans._key(facts)
