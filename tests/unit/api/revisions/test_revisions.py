"""Revisions are shown with their programs and changes, and compared without secrets."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.api.revisions import revisions as service
from keyscale.db.models import Artifact, Job, Operation, Revision
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import ChangePhase, OperationKind, OperationStatus, UpgradeMode

if TYPE_CHECKING:
    import pytest

SESSION: Any = None


def test_a_difference_of_a_parameter_that_is_named_like_a_secret_is_masked() -> None:
    assert "hunter2" not in str(service._masked("parameters.password", "hunter2"))
    assert service._masked("parameters.input", "/in") == "/in"
    assert service._masked("password", "hunter2") == "hunter2", "no parameter of a user"
    assert service._masked("parameters.password", {"secret": "DATABASE"}) == {"secret": "DATABASE"}


def test_a_revision_is_shown_with_its_program_and_the_last_change_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(number: int, artifact_id: str) -> Revision:
        return Revision(
            job_id="job",
            number=number,
            created_at_ms=number,
            created_by="ann",
            message=None,
            artifact_id=artifact_id,
            spec=JobSpec(artifact_id=artifact_id, parallelism=2).given(),
        )

    made = Operation(
        id="c",
        job_id="job",
        kind=OperationKind.UPGRADE,
        status=OperationStatus.COMPLETED,
        phase=ChangePhase.VERIFY,
        phases=[],
        from_revision=1,
        to_revision=2,
        from_parallelism=1,
        to_parallelism=2,
        upgrade_mode=UpgradeMode.SAVEPOINT,
        allow_non_restored_state=False,
        old_attempt=1,
        requested_at_ms=3,
    )
    programs = {"a": Artifact(id="a", name="program", version=6)}
    monkeypatch.setattr(service.artifacts, "find_all", lambda _, ids: {each: programs[each] for each in ids & {"a"}})
    monkeypatch.setattr(service.operations, "last_to", lambda *key: {2: made} if key[1:] == ("job", [2, 1]) else {})
    job = Job(id="job", revision=2)
    second, first = service._revision_answers(SESSION, job, [row(2, "a"), row(1, "gone")])
    assert (second.number, second.is_current, second.artifact_name, second.artifact_version) == (2, True, "program", 6)
    assert second.operation is not None
    assert second.operation.id == "c"
    assert (first.number, first.is_current, first.artifact_name, first.operation) == (1, False, "", None)


class Rows:
    """The revisions of a job, and the context that reads them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.context: Any = SimpleNamespace(reads=lambda: nullcontext(SESSION))
        job = Job(id="job", revision=3)
        numbered = {
            number: self.revision(
                number, parallelism=number, parameters={"password": f"of-{number}", "in": f"/{number}"}
            )
            for number in (1, 2, 3)
        }
        rows: dict[Any, dict[str, Any]] = {
            service: {
                "require_job": lambda _, name: {"flights": job}[name],
                "require_revision": lambda _, of, number: {"job": numbered}[of.id][number],
            },
            service.revisions: {"list_page": self.list_page},
            service.artifacts: {"find_all": lambda *_: {}},
            service.operations: {"last_to": lambda *_: {}},
        }
        self.numbered = numbered
        for module, functions in rows.items():
            for name, function in functions.items():
                monkeypatch.setattr(module, name, function)

    def revision(self, number: int, **spec: Any) -> Revision:
        of = {"artifact_id": "a", "created_at_ms": number, "created_by": "ann"}
        return Revision(job_id="job", number=number, spec=JobSpec(artifact_id="a", **spec).given(), **of)

    def list_page(self, _: Any, job_id: str, page: Any, *, created_by: str | None) -> Any:
        self.asked.append((job_id, page.limit, page.after, created_by))
        return SimpleNamespace(rows=[self.numbered[2], self.numbered[1]], next=(1,))


def test_a_list_has_the_revisions_of_its_job_and_of_the_chosen_user(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(monkeypatch)
    found = service.list_of(rows.context, "flights", Listing(2, write_cursor((3,))), "ann")
    assert rows.asked == [("job", 2, (3,), "ann")]
    assert [(each.number, each.is_current) for each in found.revisions] == [(2, False), (1, False)]
    assert found.next == write_cursor((1,))
    shown = service.show(rows.context, "flights", 3)
    assert (shown.number, shown.is_current, shown.artifact_name, shown.artifact_version) == (3, True, "", 0)


def test_two_revisions_are_compared_from_the_first_to_the_second_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = service.compare(Rows(monkeypatch).context, "flights", 3, 1)
    assert (found.before, found.after) == (3, 1)
    assert {each.path: (each.before, each.after) for each in found.differences} == {
        "parallelism": (3, 1),
        "parameters.in": ("/3", "/1"),
        "parameters.password": ("*****", "*****"),
    }
