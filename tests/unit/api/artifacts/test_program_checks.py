"""A program is checked as for a new job of its user, in one of the user's places."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.artifacts import program_checks
from keyscale.api.artifacts.schemas import ProgramCheckRequest
from keyscale.db.models import Artifact
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = Principal("user", "ann", Role.OPERATOR)
PROGRAM = Artifact(id="a1", name="visits", version=3)
SETTINGS = {"parallelism": 3, "max_parallelism": 64, "parameters": {"day": "1"}, "secrets": ["KEY"]}
SPEC = JobSpec.model_validate({"artifact_id": "a1", **SETTINGS})


class Check:
    """A control plane whose steps of a check are noted.

    Attributes:
        refusing: The step that is refused.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[Any] = []
        self.refusing = ""
        self.context: Any = SimpleNamespace(
            checks=SimpleNamespace(place=lambda user_id: self.within(f"place of {user_id}")),
            sessions=SimpleNamespace(begin=lambda: self.within("transaction")),
        )
        answers = {
            "require_artifact": PROGRAM,
            "check_specification": None,
            "require_program": None,
            "require_covered": None,
            "load_program": SimpleNamespace(declaration="declared"),
            "failure_of": "failure",
            "check_answer": "answer",
        }
        for name, answer in answers.items():
            monkeypatch.setattr(program_checks, name, self.step(name, answer))
        monkeypatch.setattr(program_checks.events, "record", self.step("event", None))
        monkeypatch.setattr(program_checks, "shared_now_ms", lambda: 55)

    @contextmanager
    def within(self, name: str) -> Iterator[Check]:
        self.noted.append(name)
        try:
            yield self
        finally:
            self.noted.append(f"end of {name}")

    def step(self, name: str, answer: object) -> Any:
        def take(*given: Any, **named: Any) -> object:
            self.noted.append((name, *given, named) if named else (name, *given))
            if name == self.refusing:
                raise PermissionError
            return answer

        return take

    def flush(self) -> None:
        self.noted.append("flush")

    def expunge(self, row: Artifact) -> None:
        assert row is PROGRAM
        self.noted.append("expunge")


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    return Check(monkeypatch)


def run(check: Check) -> Any:
    return program_checks.check(check.context, USER, "a1", ProgramCheckRequest.model_validate(SETTINGS))


def test_a_program_is_loaded_after_every_rule_of_a_new_job_and_outside_of_the_transaction(check: Check) -> None:
    assert run(check) == "answer"
    event = {
        "job_id": None,
        "at_ms": 55,
        "kind": "ARTIFACT_CHECKED",
        "actor": "ann",
        "message": "checked visits version 3",
        "artifact_id": "a1",
        "secrets": ["KEY"],
    }
    loaded = SimpleNamespace(declaration="declared")
    assert check.noted == [
        "place of user",
        "transaction",
        ("require_artifact", check, "a1"),
        ("check_specification", check.context, SPEC),
        ("require_program", check.context, check, USER, SPEC),
        ("require_covered", check, USER, None, SPEC),
        ("event", check, event),
        "flush",
        "expunge",
        "end of transaction",
        ("load_program", check.context, PROGRAM, SPEC, {"max_parallelism": 64, "holder": None}),
        "end of place of user",
        ("failure_of", check.context, SPEC, loaded),
        ("check_answer", "declared", "failure"),
    ]


@pytest.mark.parametrize("step", ["check_specification", "require_program", "require_covered", "load_program"])
def test_a_check_that_is_refused_gives_its_place_back_and_loads_nothing(check: Check, step: str) -> None:
    check.refusing = step
    with pytest.raises(PermissionError):
        run(check)
    names = [each if isinstance(each, str) else each[0] for each in check.noted]
    assert names[-1] == "end of place of user"
    assert ("load_program" in names, "event" in names) == (step == "load_program",) * 2
