"""A real control plane answers as its OpenAPI document says, whatever is sent; schemathesis makes the requests.

Jobs are started in earnest, but on a host without Java, so that no driver lives for long.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_plane.running_control_plane import running_control_plane

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = pytest.mark.real

# Without `positive_data_acceptance`, as cursors and versions depend on what is stored, and without
# `negative_data_rejection`, as a body of null is no body, and 0 and 1 are false and true.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "missing_required_header",
    "use_after_free",
    "ensure_resource_availability",
)

# Else most requests would be answered with 429, which every route may answer.
WITHOUT_LIMITS = {
    "KEYSCALE_USER_REQUESTS_PER_SECOND": "0",
    "KEYSCALE_ADDRESS_REQUESTS_PER_SECOND": "0",
    "KEYSCALE_FAILURES_PER_MINUTE": "0",
}


JOBS = ("flights", "orders", "bills")


@pytest.fixture(scope="module")
def served() -> Iterator[RunningControlPlane]:
    """A control plane with jobs, of which one is wanted to run, so that requests find something."""
    with running_control_plane({"JAVA_HOME": "/nonexistent", **WITHOUT_LIMITS}) as control_plane:
        artifact = control_plane.api.upload("/v1/artifacts", filename="job.py", content=b"print(1)\n")
        for name in JOBS:
            control_plane.api.post("/v1/jobs", {"name": name, "spec": {"artifact_id": artifact["id"]}})
        control_plane.api.post("/v1/jobs/flights/start")
        yield control_plane


def described(served: RunningControlPlane) -> Any:
    """The document without the event streams, which do not end by themselves."""
    document = served.api.get("/v1/openapi.json")
    streams = [path for path in document["paths"] if path.endswith("/stream")]
    assert streams
    for path in streams:
        assert document["paths"].pop(path)["get"]["responses"]["200"]["content"].keys() == {"text/event-stream"}
    return document


def pointed(document: Any, artifact_id: str, *, with_plans: bool) -> Any:
    """Makes a document name the jobs that there are, so that most requests find one.

    Requests that delete something have to make it first.

    Args:
        document: The document, which is changed.
        artifact_id: The artifact that there is.
        with_plans: Whether plans find a job, too: each takes a second.
    """
    known = {
        "job_id": {"enum": [*JOBS, "nobody"]},
        "artifact_id": {"enum": [artifact_id, "none"]},
        "revision": {"type": "integer", "enum": [1, 2, 3, 99]},
    }
    for methods in document["paths"].values():
        for method, operation in methods.items():
            if method == "delete" or (method == "patch" and not with_plans):
                continue
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and parameter["name"] in known:
                    parameter["schema"] = known[parameter["name"]]
    for name, schema in document["components"]["schemas"].items():
        if name == "JobSpec":
            schema["properties"]["artifact_id"] = known["artifact_id"]
    return document


def try_requests(served: RunningControlPlane, directory: Path, document: Any, *options: str) -> tuple[int, int, str]:
    """Lets schemathesis make requests from a document; returns its exit code, the number of requests, and its words."""
    file = directory / "openapi.json"
    file.write_text(json.dumps(document))
    connection = served.process.connection
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", connection.url),
            *("--header", f"Authorization: Bearer {connection.token}", "--checks", ",".join(CHECKS)),
            *("--no-shrink", "--continue-on-failure", "--seed", "7", "--output-sanitize", "true", *options),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    made = re.search(r"(\d+) generated", finished.stdout)
    return finished.returncode, int(made[1]) if made else 0, finished.stdout[-10_000:]


@pytest.mark.parametrize(
    ("phases", "examples", "requests_min"),
    [
        pytest.param("examples,fuzzing,stateful", 2, 100, id="short"),
        pytest.param(
            *("examples,coverage,fuzzing,stateful", 60, 4000),
            id="with every border of every parameter",
            marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)],
        ),
    ],
)
def test_every_answer_is_named_by_the_document(
    served: RunningControlPlane, tmp_path: Path, phases: str, examples: int, requests_min: int
) -> None:
    artifact_id = served.api.get("/v1/jobs/flights")["spec"]["artifact_id"]
    document = pointed(described(served), artifact_id, with_plans="coverage" in phases)
    options = ("--phases", phases, "--max-examples", str(examples))
    code, requests, words = try_requests(served, tmp_path, document, *options)
    assert code == 0, words
    assert "Stateful" in words
    assert "Unresolvable" not in words
    assert requests > requests_min, words


def test_an_answer_that_the_document_does_not_name_is_found(served: RunningControlPlane, tmp_path: Path) -> None:
    document = served.api.get("/v1/openapi.json")
    shown = document["paths"]["/v1/operations/{operation_id}"]
    del shown["get"]["responses"]["404"]
    document["paths"] = {"/v1/operations/{operation_id}": shown}
    code, _, words = try_requests(served, tmp_path, document, "--phases", "fuzzing", "--max-examples", "3")
    assert code == 1, words
    assert "undocumented" in words.lower()
