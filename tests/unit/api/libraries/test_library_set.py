"""A job's libraries: what fits together, what clashes, what is missing."""

from __future__ import annotations

import re

import pytest
from packaging.tags import Tag

from keyscale.api.errors import (
    ApiError,
    ArtifactInvalidError,
    LibraryClashError,
    LibraryInvalidError,
    LibraryRequirementError,
)
from keyscale.api.libraries.contents import ArtifactContents
from keyscale.api.libraries.library_set import Library, check_libraries, check_wheel
from keyscale.api.libraries.platform_packages import PlatformPackage, PlatformPackages
from keyscale.jobs.protocol.specification import LIBRARIES_MAX
from keyscale.vocabulary import ArtifactKind

PLATFORM = PlatformPackages.of(
    [
        PlatformPackage("numpy", "2.4.0", ("numpy",)),
        PlatformPackage("storage", "1.0", ("cloud.storage",), ("fast>=2; extra == 'speed'",)),
    ],
    python_version="3.11.7",
    tags=[Tag("py3", "none", "any"), Tag("cp311", "cp311", "manylinux_2_17_x86_64")],
    platforms=["linux_x86_64"],
)
PROGRAM = Library("main.py", ArtifactKind.PYTHON)


def wheel(name: str, version: str = "1.0", *, modules: tuple[str, ...] = (), requires: tuple[str, ...] = ()) -> Library:
    contents = ArtifactContents(modules=modules or (name,), distribution=name, version=version, requires=requires)
    return Library(f"{name}-{version}-py3-none-any.whl", ArtifactKind.WHEEL, contents=contents)


def zipped(*modules: str) -> Library:
    return Library("job.zip", ArtifactKind.ZIP, contents=ArtifactContents(modules=modules))


def refusal(kind: type[ApiError], *libraries: Library, program: Library = PROGRAM) -> str:
    with pytest.raises(kind) as caught:
        check_libraries(program, libraries, PLATFORM)
    return caught.value.detail


def test_libraries_that_need_each_other_and_the_platform_fit() -> None:
    first = wheel("first", requires=("second[more]>=2", "numpy>=2", "absent; python_version < '3'"))
    second = wheel("second", "2.1", requires=("third; extra == 'more'",))
    helper = Library("helper.py", ArtifactKind.PYTHON)
    jar = Library("codec.jar", ArtifactKind.JAR)
    check_libraries(zipped("mine"), [first, second, wheel("third"), helper, jar], PLATFORM)


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (wheel("NumPy", "1.26"), "the platform itself runs on numpy 2.4.0"),
        (wheel("other", modules=("numpy",)), "numpy is a part of numpy 2.4.0"),
        (wheel("other", modules=("numpy.extra",)), "numpy.extra is a part of numpy 2.4.0"),
        (wheel("other", modules=("cloud",)), "cloud is a part of storage 1.0"),
        (Library("json.py", ArtifactKind.PYTHON), "Python itself has a module json"),
        (Library("numpy.py", ArtifactKind.PYTHON), "numpy is a part of numpy 2.4.0"),
    ],
)
def test_what_the_platform_or_python_has_is_refused_with_its_name_and_version(library: Library, said: str) -> None:
    assert said in refusal(LibraryClashError, library)


def test_a_namespace_may_be_shared_with_the_platform_and_with_another_library() -> None:
    queue = wheel("queue-client", modules=("cloud.queue",))
    check_libraries(PROGRAM, [queue, wheel("mail", modules=("cloud.mail",))], PLATFORM)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (wheel("same", "1.0"), wheel("Same", "2.0", modules=("other",)), "are both same"),
        (wheel("a", modules=("shapes",)), Library("shapes.py", ArtifactKind.PYTHON), "both have the module shapes"),
        (wheel("a", modules=("wide",)), wheel("b", modules=("wide.deep",)), "wide.deep, and a-1.0"),
    ],
)
def test_two_libraries_with_the_same_names_are_refused(first: Library, second: Library, said: str) -> None:
    assert said in refusal(LibraryClashError, first, second)
    assert refusal(LibraryClashError, second, first)


def test_two_jars_with_the_same_file_name_are_refused() -> None:
    jars = (Library("codec.jar", ArtifactKind.JAR, "aa"), Library("codec.jar", ArtifactKind.JAR, "bb"))
    assert refusal(LibraryClashError, *jars) == "two jars are called codec.jar; Spark would omit one of them"


def test_the_programs_own_modules_count_but_not_its_name() -> None:
    assert "shapes" in refusal(LibraryClashError, wheel("shapes"), program=zipped("shapes"))
    check_libraries(Library("shapes.py", ArtifactKind.PYTHON), [wheel("shapes")], PLATFORM)


def test_every_missing_requirement_is_named() -> None:
    library = wheel("a", requires=("b>=2", "numpy<2", "c>=2", "storage[speed]"))
    said = refusal(LibraryRequirementError, library, wheel("c", "1.5"))
    assert said == (
        "a needs b>=2; a needs c>=2, and the job brings 1.5; a needs numpy<2, and the platform has 2.4.0; "
        "storage needs fast>=2"
    )


def test_a_python_file_that_no_import_can_name_is_refused() -> None:
    for name in ("my-helper.py", "class.py"):
        assert "no module" in refusal(LibraryInvalidError, Library(name, ArtifactKind.PYTHON))


def test_there_is_a_most_number_of_libraries() -> None:
    assert "at most" in refusal(LibraryInvalidError, *[wheel(f"w{n}") for n in range(LIBRARIES_MAX + 1)])


@pytest.mark.parametrize(
    ("filename", "contents", "said"),
    [
        ("a-1.0-cp310-cp310-win_amd64.whl", {}, "is for cp310-cp310-win_amd64; this platform runs Python 3.11.7"),
        ("a-1.0-py3-none-any.whl", {"requires_python": "<3.11"}, "needs Python <3.11, and the platform has 3.11.7"),
        ("a-1.0-py3-none-any.whl", {"version": "2.0"}, "different packages or versions"),
        ("a-1.0-py3-none-any.whl", {"requires": ("b >= >=",)}, "not valid"),
        ("a.whl", {}, "not valid"),
    ],
)
def test_a_wheel_for_another_platform_or_with_false_metadata_is_refused(
    filename: str, contents: dict[str, object], said: str
) -> None:
    inside = ArtifactContents.model_validate({"distribution": "a", "version": "1.0", **contents})
    with pytest.raises(ArtifactInvalidError, match=re.escape(said)):
        check_wheel(Library(filename, ArtifactKind.WHEEL, contents=inside), PLATFORM)


def test_a_wheel_of_a_package_of_the_platform_is_refused_at_its_upload() -> None:
    with pytest.raises(LibraryClashError, match=r"numpy 2\.4\.0"):
        check_wheel(wheel("numpy"), PLATFORM)
    check_wheel(wheel("a"), PLATFORM)
