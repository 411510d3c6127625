"""A specification names its libraries, and each of them is checked for the user who asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.errors import ApiError, ArtifactNotFoundError, ArtifactNotRunnableError, LibraryInvalidError
from keyscale.api.libraries import job_libraries as service
from keyscale.api.libraries.contents import ArtifactContents
from keyscale.api.libraries.job_libraries import JobLibraries, libraries_of, require_libraries
from keyscale.api.libraries.library_set import Library
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Artifact
from keyscale.jobs.protocol.messages import LibraryFile
from keyscale.vocabulary import ArtifactKind

if TYPE_CHECKING:
    from collections.abc import Sequence

SESSION: Any = None
SCOPE = JobScope(frozenset({"flights"}))


def artifact(name: str, kind: ArtifactKind, **contents: Any) -> Artifact:
    stored = ArtifactContents(**contents).model_dump() if contents else None
    return Artifact(id=name, filename=f"{name}.x", sha256=f"hash of {name}", kind=kind, contents=stored)


class World:
    """Artifacts, and what is asked of the rules of libraries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hidden: set[str] = set()
        self.asked: list[Any] = []
        self.refusal: tuple[str, Exception] | None = None
        found = [
            artifact("program", ArtifactKind.PYTHON),
            artifact("zip", ArtifactKind.ZIP, runnable=True),
            artifact("modules", ArtifactKind.ZIP, runnable=False),
            artifact("wheel", ArtifactKind.WHEEL, distribution="shapes", runnable=True),
            artifact("jar", ArtifactKind.JAR),
        ]
        self.known = {each.id: each for each in found}
        monkeypatch.setattr(service.artifacts, "is_visible", self._is_visible)
        monkeypatch.setattr(
            service.artifacts, "find_all", lambda _, ids: {k: v for k, v in self.known.items() if k in ids}
        )
        monkeypatch.setattr(service, "check_libraries", lambda *given: self._ask("check", *given))
        monkeypatch.setattr(service, "installed_platform", lambda: "the platform")
        self.rules: Any = SimpleNamespace(
            require_allowed=lambda jars: self._ask("allowed", jars), jars_of=lambda names: self._ask("jars", *names)
        )

    def _is_visible(self, _: Any, artifact_id: str, *, scope: JobScope, user_id: str) -> bool:
        assert (scope, user_id) == (SCOPE, "me")
        return artifact_id in self.known and artifact_id not in self.hidden

    def _ask(self, what: str, *given: Any) -> None:
        self.asked.append((what, *given))
        if self.refusal is not None and self.refusal[0] == what:
            raise self.refusal[1]

    def require(self, program: str, names: Sequence[str] = ()) -> None:
        require_libraries(SESSION, program, names, self.rules, scope=SCOPE, user_id="me")

    def library(self, name: str) -> Library:
        row = self.known[name]
        contents = ArtifactContents() if row.contents is None else ArtifactContents.model_validate(row.contents)
        return Library(row.filename, row.kind, row.sha256, contents)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.usefixtures("world")
def test_libraries_are_in_their_order_and_packages_apart() -> None:
    found = libraries_of(SESSION, ["package:kafka", "wheel", "jar", "package:delta"])

    def file(name: str, kind: str) -> LibraryFile:
        return LibraryFile.model_validate({"filename": f"{name}.x", "sha256": f"hash of {name}", "kind": kind})

    assert found == JobLibraries((file("wheel", "WHEEL"), file("jar", "JAR")), ("kafka", "delta"))
    with pytest.raises(ArtifactNotFoundError, match="id gone"):
        libraries_of(SESSION, ["wheel", "gone"])


def test_the_program_its_libraries_and_its_packages_are_checked_together(world: World) -> None:
    world.require("zip", ["jar", "package:kafka", "wheel"])
    libraries = [world.library("jar"), world.library("wheel")]
    assert world.asked == [
        ("allowed", libraries),
        ("jars", "kafka"),
        ("check", world.library("zip"), libraries, "the platform"),
    ]


@pytest.mark.parametrize(
    ("program", "names", "error"),
    [
        ("gone", [], ArtifactNotFoundError),
        ("program", ["gone"], ArtifactNotFoundError),
        ("modules", [], ArtifactNotRunnableError),
        ("wheel", [], ArtifactNotRunnableError),
        ("jar", [], ArtifactNotRunnableError),
        ("program", ["wheel", "jar", "wheel"], LibraryInvalidError),
        ("program", ["package:kafka", "package:kafka"], LibraryInvalidError),
    ],
)
def test_what_no_job_can_run_is_refused(world: World, program: str, names: list[str], error: type[ApiError]) -> None:
    with pytest.raises(error):
        world.require(program, names)
    assert world.asked == []


@pytest.mark.parametrize("hidden", ["program", "jar"])
def test_an_artifact_that_the_user_may_not_see_does_not_exist(world: World, hidden: str) -> None:
    world.hidden = {hidden}
    with pytest.raises(ArtifactNotFoundError, match=f"no artifact has the id {hidden}"):
        world.require("program", ["wheel", "jar"])


@pytest.mark.parametrize("rule", ["allowed", "jars", "check"])
def test_the_refusal_of_each_rule_is_the_answer(world: World, rule: str) -> None:
    world.refusal = rule, LibraryInvalidError("no")
    with pytest.raises(LibraryInvalidError):
        world.require("program", ["wheel", "package:kafka"])
