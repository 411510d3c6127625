from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.api.errors import JarNotAllowedError, LibraryInvalidError
from keyscale.api.libraries.jar_rules import JarRules
from keyscale.api.libraries.library_set import Library
from keyscale.vocabulary import ArtifactKind

if TYPE_CHECKING:
    from pathlib import Path

JAR = Library("codec.jar", ArtifactKind.JAR, "ab" * 32)


@pytest.mark.parametrize("allowed", ["*", "codec.jar", "ab" * 32])
def test_a_jar_is_allowed_by_name_by_content_or_as_any_jar(allowed: str) -> None:
    JarRules(frozenset({allowed, "other.jar"})).require_allowed([JAR])


def test_any_other_jar_is_refused_with_what_the_administrator_needs() -> None:
    with pytest.raises(JarNotAllowedError, match=r"codec\.jar with the SHA-256 abab"):
        JarRules(frozenset({"other.jar"})).require_allowed([JAR])
    JarRules(frozenset()).require_allowed([Library("helper.py", ArtifactKind.PYTHON)])


def test_a_package_is_a_directory_of_jars(tmp_path: Path) -> None:
    for file in ("kafka/b.jar", "kafka/a.jar", "kafka/README", "empty/README", "delta/d.jar"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    rules = JarRules(packages_directory=tmp_path)
    assert [jar.name for jar in rules.jars_of(["kafka", "delta", "kafka"])] == ["a.jar", "b.jar", "d.jar"]
    for name in ("empty", "../kafka", "hive"):
        with pytest.raises(LibraryInvalidError, match="it has: delta, kafka"):
            rules.jars_of([name])
    with pytest.raises(LibraryInvalidError, match="it has: none"):
        JarRules().jars_of(["kafka"])
