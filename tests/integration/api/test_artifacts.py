from __future__ import annotations

import hashlib
import io
import socket
import zipfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select

from keyscale.api.control_plane.context import UPLOADS_MAX, UPLOADS_OF_USER_MAX
from keyscale.db.job_scope import JobScope
from keyscale.db.models import ArtifactChunk
from keyscale.db.repositories import artifacts
from keyscale.vocabulary import Role
from tests.integration.api.conftest import add_token
from tests.support.readable_sources import readable
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database


def make_zip(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # without the time of day: it is in names of tests
    return buffer.getvalue()


def chunk_count(context: Context) -> int:
    with context.sessions() as session:
        return session.scalar(select(func.count()).select_from(ArtifactChunk)) or 0


def test_an_upload_is_stored_under_its_hash_and_comes_back_whole(context: Context, upload: Callable[..., Any]) -> None:
    content = b"# " + b"x" * 900_000 + b"\nprint(1)\n"
    answer = upload(content, "my job.py", name="mine")
    assert answer.status_code == 201
    artifact = answer.json()
    assert artifact["sha256"] == hashlib.sha256(content).hexdigest()
    assert (artifact["name"], artifact["version"], artifact["kind"], artifact["filename"]) == (
        "mine",
        1,
        "PYTHON",
        "mine.py",
    )
    with context.sessions() as session:
        assert b"".join(artifacts.read_bytes(session, artifact["sha256"])) == content


def test_other_bytes_under_a_name_are_its_next_version_and_the_same_bytes_are_not(upload: Callable[..., Any]) -> None:
    first = upload(b"print(1)\n")
    again = upload(b"print(1)\n")
    second = upload(b"print(2)\n")
    assert (first.status_code, again.status_code, second.status_code) == (201, 200, 201)
    assert again.json() == first.json()
    assert second.json()["version"] == 2
    back = upload(b"print(1)\n").json()
    assert back["version"] == 3


def test_the_same_bytes_are_stored_once_until_their_last_artifact_is_deleted(
    context: Context, client: httpx.Client, upload: Callable[..., Any]
) -> None:
    one, other = (upload(name=name).json() for name in ("one", "other"))
    assert chunk_count(context) == 1
    assert client.delete(f"/v1/artifacts/{one['id']}").status_code == 204
    assert chunk_count(context) == 1
    assert client.delete(f"/v1/artifacts/{other['id']}").status_code == 204
    assert chunk_count(context) == 0
    assert client.get(f"/v1/artifacts/{one['id']}").json()["code"] == "ARTIFACT_NOT_FOUND"
    assert client.delete(f"/v1/artifacts/{one['id']}").json()["code"] == "ARTIFACT_NOT_FOUND"


def test_an_artifact_names_who_uploaded_it_and_the_jobs_that_use_it_as_program_or_library(
    client: httpx.Client, upload: Callable[..., Any]
) -> None:
    program = upload(b"import tools\n", "program.py").json()
    library = upload(b"one = 1\n", "tools.py").json()
    assert (program["uploaded_by"], program["used_by"]) == ("admin", [])
    for name, used in (("second", [library["id"]]), ("first", [library["id"]]), ("third", [])):
        body = {"name": name, "spec": {"artifact_id": program["id"], "libraries": used}}
        assert client.post("/v1/jobs", json=body).status_code == 201
    listed = {each["name"]: each for each in client.get("/v1/artifacts").json()["artifacts"]}
    assert listed["program"]["used_by"] == ["first", "second", "third"]
    assert (listed["tools"]["uploaded_by"], listed["tools"]["used_by"]) == ("admin", ["first", "second"])
    assert client.get(f"/v1/artifacts/{library['id']}").json() == listed["tools"]
    for query, names in (({"name": "tools"}, ["tools"]), ({"kind": ["PYTHON", "JAR"], "name": "program"}, ["program"])):
        chosen = client.get("/v1/artifacts", params=query).json()["artifacts"]
        assert [each["name"] for each in chosen] == names
    assert client.get("/v1/artifacts", params={"kind": "JAR"}).json()["artifacts"] == []


def test_an_artifact_that_a_job_uses_is_not_deleted(client: httpx.Client, job: dict[str, Any]) -> None:
    answer = client.delete(f"/v1/artifacts/{job['spec']['artifact_id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "ARTIFACT_IN_USE")
    assert client.delete(f"/v1/jobs/{job['id']}").status_code == 204
    assert client.delete(f"/v1/artifacts/{job['spec']['artifact_id']}").status_code == 204


@pytest.mark.parametrize("entry", ["__main__.py", "main.py"])
def test_a_zip_with_a_main_program_and_a_jar_are_known_by_their_content(upload: Callable[..., Any], entry: str) -> None:
    assert upload(make_zip(**{entry: b"print(1)\n"}), "job.zip").json()["kind"] == "ZIP"
    jar = make_zip(**{"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\n"})
    assert upload(jar, "connector.jar").json()["kind"] == "JAR"


@pytest.mark.parametrize("content", [b"def broken(:\n", b"(" * 10_000], ids=["broken", "too deep"])
def test_a_file_that_is_refused_is_not_stored(context: Context, upload: Callable[..., Any], content: bytes) -> None:
    answer = upload(content, "job.py")
    assert (answer.status_code, answer.json()["code"]) == (422, "ARTIFACT_INVALID")
    assert answer.headers["content-type"] == "application/problem+json"
    assert chunk_count(context) == 0


def make_wheel(name: str, version: str, *requires: str, **modules: bytes) -> bytes:
    directory = f"{name}-{version}.dist-info"
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requires)]
    files = {f"{directory}/WHEEL": b"Wheel-Version: 1.0\n", f"{directory}/METADATA": "\n".join(lines).encode()}
    return make_zip(**{**files, **modules})


def test_a_wheel_keeps_its_file_name_and_its_versions_are_those_of_one_artifact(upload: Callable[..., Any]) -> None:
    first = upload(make_wheel("Shapes", "1.0", **{"shapes.py": b""}), "Shapes-1.0-py3-none-any.whl").json()
    second = upload(make_wheel("Shapes", "1.1", **{"shapes.py": b""}), "Shapes-1.1-py3-none-any.whl").json()
    assert (first["kind"], first["name"], first["version"]) == ("WHEEL", "Shapes", 1)
    assert (second["filename"], second["name"], second["version"]) == ("Shapes-1.1-py3-none-any.whl", "Shapes", 2)


def test_a_wheel_that_the_platform_has_or_cannot_use_is_refused(upload: Callable[..., Any]) -> None:
    clash = upload(make_wheel("numpy", "1.0", **{"numpy.py": b""}), "numpy-1.0-py3-none-any.whl").json()
    assert clash["code"] == "LIBRARY_CLASH"
    assert "the platform itself runs on numpy" in clash["detail"]
    windows = upload(make_wheel("x", "1.0", **{"x.py": b""}), "x-1.0-cp311-cp311-win_amd64.whl").json()
    assert windows["code"] == "ARTIFACT_INVALID"
    assert "win_amd64" in windows["detail"]


def test_neither_a_wheel_nor_a_zip_of_modules_is_a_program(upload: Callable[..., Any], client: httpx.Client) -> None:
    for artifact in (
        upload(make_wheel("shapes", "1.0", **{"shapes.py": b""}), "shapes-1.0-py3-none-any.whl").json(),
        upload(make_zip(**{"shapes/__init__.py": b""}), "shapes.zip").json(),
    ):
        refused = client.post("/v1/jobs", json={"name": "never", "spec": {"artifact_id": artifact["id"]}}).json()
        assert refused["code"] == "ARTIFACT_NOT_RUNNABLE"


def test_a_link_in_a_zip_is_refused(upload: Callable[..., Any]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", "print(1)\n")
        link = zipfile.ZipInfo("secret")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    assert upload(buffer.getvalue(), "job.zip").json()["code"] == "ARTIFACT_INVALID"


def test_a_file_above_the_size_limit_is_refused(upload: Callable[..., Any], client: httpx.Client) -> None:
    assert upload(b"#" * ((1 << 20) + 1)).json()["code"] == "BODY_TOO_LARGE"
    assert upload(b"#" * (2 << 20)).json()["code"] == "BODY_TOO_LARGE"

    def unannounced() -> Any:
        yield b'--frontier\r\nContent-Disposition: form-data; name="file"; filename="job.py"\r\n\r\n'
        for _ in range(64):
            yield b"x" * (1 << 16)

    answer = client.post(
        "/v1/artifacts", content=unannounced(), headers={"Content-Type": "multipart/form-data; boundary=frontier"}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")


@pytest.mark.parametrize("name", ["../etc", "a/b", "", "ä", "x" * 101, "<script>"])
def test_a_name_that_could_be_a_path_or_a_program_is_refused(upload: Callable[..., Any], name: str) -> None:
    answer = upload(filename=f"{name}.py") if name else upload(filename=".py")
    if name == "../etc":  # only the last part of a client's path is used
        assert answer.json()["name"] == "etc"
    elif name == "a/b":
        assert answer.json()["name"] == "b"
    else:
        assert answer.status_code == 422
    assert upload(name=name or "-").json()["code"] == "REQUEST_INVALID"


def test_uploads_beyond_the_limit_are_refused_until_an_earlier_upload_ends(
    context: Context, upload: Callable[..., Any]
) -> None:
    with ExitStack() as others:
        for number in range(UPLOADS_MAX):
            others.enter_context(context.uploads.place(f"user {number}"))
        answer = upload()
        assert (answer.status_code, answer.json()["code"]) == (429, "TOO_MANY_IN_FLIGHT")
        assert answer.json()["retryable"]
        assert answer.headers["retry-after"]
    assert upload().status_code == 201
    assert upload(b"def broken(:").status_code == 422
    assert upload(b"print(2)").status_code == 201, "a refused upload has given its slot back"


@pytest.mark.usefixtures("on_socket")
def test_a_user_whose_uploads_do_not_end_leaves_places_for_other_users(
    client: httpx.Client, context: Context, upload: Callable[..., Any]
) -> None:
    with context.sessions.begin() as session:
        add_token(session, "slow", Role.OPERATOR)
    address = (client.base_url.host, client.base_url.port or 0)
    head = b"POST /v1/artifacts HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer slow\r\nContent-Length: 500000\r\n"
    kind = b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
    with ExitStack() as opened:
        slow = [opened.enter_context(socket.create_connection(address, timeout=20)) for _ in range(20)]
        for each in slow:
            each.sendall(head + kind)
        wait_until(lambda: len(readable(slow, 0)) == 20 - UPLOADS_OF_USER_MAX, what="their refusals")
        assert upload().status_code == 201


def test_the_platform_says_what_every_job_has(client: httpx.Client) -> None:
    answer = client.get("/v1/artifacts/platform").json()
    assert {"numpy", "pyspark", "keyscale"} <= set(answer["packages"])
    assert "pytest" not in answer["packages"]
    assert any(name.startswith("manylinux") for name in answer["platforms"])
    assert answer["jar_packages"] == []


def test_a_user_with_a_scope_sees_the_own_uploads_and_no_others(
    client: httpx.Client, upload: Callable[..., Any], context: Context
) -> None:
    foreign = upload(b"print(2)\n", "foreign.py").json()["id"]
    with context.sessions.begin() as session:
        add_token(session, "the-scoped-token", Role.OPERATOR, JobScope(frozenset({"mine"})))
    client.headers["Authorization"] = "Bearer the-scoped-token"
    own = upload(b"print(3)\n", "own.py").json()
    assert own["uploaded_by"] == "scoped"
    assert [each["id"] for each in client.get("/v1/artifacts").json()["artifacts"]] == [own["id"]]
    assert client.get(f"/v1/artifacts/{own['id']}").status_code == 200
    assert client.get(f"/v1/artifacts/{foreign}").status_code == 404
    content = client.get(f"/v1/artifacts/{own['id']}/content")
    assert (content.status_code, content.content) == (200, b"print(3)\n")
    assert content.headers["content-disposition"] == 'attachment; filename="own.py"'
    assert client.get(f"/v1/artifacts/{foreign}/content").status_code == 404
    again = upload(b"print(3)\n", "own.py").json()
    assert again == own, "the same bytes are the same version"
    copy = upload(b"print(2)\n", "foreign.py").json()
    assert (copy["id"] != foreign, copy["uploaded_by"]) == (True, "scoped")
    assert client.get(f"/v1/artifacts/{copy['id']}").status_code == 200
