"""The libraries of a job: named when it is created or changed, checked together, and given to its driver."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.libraries.jar_rules import JarRules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from keyscale.api.settings import Settings

pytestmark = pytest.mark.real

PROGRAM = b"print(1)\n"


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    package = tmp_path / "packages" / "kafka"
    package.mkdir(parents=True)
    (package / "connector.jar").touch()
    return replace(settings, jar_rules=JarRules(frozenset({"codec.jar"}), package.parent))


def make_zip(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.fixture
def bring(upload: Callable[..., Any]) -> Callable[..., str]:
    """Uploads a library and gives its id."""

    def brought(content: bytes, filename: str) -> str:
        answer = upload(content, filename)
        assert answer.status_code in {200, 201}, answer.text  # 200: the same bytes are there already
        return str(answer.json()["id"])

    return brought


@pytest.fixture
def wheel(bring: Callable[..., str]) -> Callable[..., str]:
    """Uploads a wheel with one module of its name and gives its id."""

    def brought(name: str, *requires: str) -> str:
        info = f"{name}-1.0.dist-info"
        metadata = "\n".join([f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {each}" for each in requires)])
        files = {f"{name}.py": "", f"{info}/WHEEL": "Wheel-Version: 1.0\n", f"{info}/METADATA": metadata}
        return bring(make_zip(**files), f"{name}-1.0-py3-none-any.whl")

    return brought


@pytest.fixture
def create(client: httpx.Client, bring: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    program = bring(PROGRAM, "program.py")

    def created(*libraries: str) -> dict[str, Any]:
        body = {"name": "words", "spec": {"artifact_id": program, "libraries": list(libraries)}}
        answer: dict[str, Any] = client.post("/v1/jobs", json=body).json()
        return answer

    return created


def test_a_job_has_the_libraries_of_its_revision_and_a_change_replaces_them(
    client: httpx.Client, create: Callable[..., dict[str, Any]], bring: Callable[..., str], wheel: Callable[..., str]
) -> None:
    first = [wheel("shapes", "numpy>=1", "colours"), wheel("colours"), bring(b"x = 1\n", "helper.py"), "package:kafka"]
    job = create(*first)
    assert job["spec"]["libraries"] == first
    jar = bring(make_zip(**{"META-INF/MANIFEST.MF": ""}), "codec.jar")
    answer = client.patch("/v1/jobs/words", json={"spec": {"libraries": [jar]}}, headers={"If-Match": '"1"'})
    assert answer.status_code < 300, answer.text
    assert client.get("/v1/jobs/words").json()["spec"]["libraries"] == [jar]
    assert client.get("/v1/jobs/words/revisions/1").json()["spec"]["libraries"] == first
    assert client.delete(f"/v1/artifacts/{first[0]}").json()["code"] == "ARTIFACT_IN_USE"


def test_what_does_not_fit_is_refused_before_anything_runs(
    client: httpx.Client, create: Callable[..., dict[str, Any]], bring: Callable[..., str], wheel: Callable[..., str]
) -> None:
    shapes = wheel("shapes", "colours>=1")
    assert create(shapes)["detail"] == "shapes needs colours>=1"
    assert create(shapes)["code"] == "LIBRARY_REQUIREMENT_MISSING"
    assert create(bring(b"x = 1\n", "shapes.py"), wheel("colours"), shapes)["code"] == "LIBRARY_CLASH"
    assert create(bring(b"x = 1\n", "numpy.py"))["code"] == "LIBRARY_CLASH"
    assert create("package:hive")["code"] == "LIBRARY_INVALID"
    assert create("package:kafka", "package:kafka")["code"] == "LIBRARY_INVALID"
    assert create(bring(make_zip(**{"META-INF/MANIFEST.MF": ""}), "other.jar"))["code"] == "JAR_NOT_ALLOWED"
    assert create("0" * 32)["code"] == "ARTIFACT_NOT_FOUND"
    assert create("../x")["code"] == "REQUEST_INVALID"
    assert client.get("/v1/jobs").json()["jobs"] == []
    job = create(shapes, wheel("colours"))
    answer = client.patch(f"/v1/jobs/{job['id']}", json={"spec": {"libraries": [shapes]}}, headers={"If-Match": '"1"'})
    assert answer.json()["code"] == "LIBRARY_REQUIREMENT_MISSING"
    assert client.get(f"/v1/jobs/{job['id']}").json()["spec"]["libraries"] == job["spec"]["libraries"]
