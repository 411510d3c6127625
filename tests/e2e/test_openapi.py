"""A real control plane answers as its OpenAPI document says, whatever is sent; schemathesis makes the requests.

Jobs are started in earnest, but on a host without Java, so that no driver lives for long.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = pytest.mark.real

# Else most requests would be answered with 429, which every route may answer.
WITHOUT_LIMITS = {
    "KEYSCALE_USER_REQUESTS_PER_SECOND": "0",
    "KEYSCALE_ADDRESS_REQUESTS_PER_SECOND": "0",
    "KEYSCALE_FAILURES_PER_MINUTE": "0",
}


CONFIGURATION = ROOT / "tests/support/openapi/schemathesis.toml"
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
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "delete" or ((method == "patch" or path.endswith("/check")) and not with_plans):
                continue
            # A read after a batch waits half a minute for a batch that no driver commits.
            waits = "after" if "/state/" in path else None
            asked = [each for each in operation.get("parameters", []) if each["name"] != waits]
            operation["parameters"] = asked
            for parameter in asked:
                if parameter["in"] == "path" and parameter["name"] in known:
                    parameter["schema"] = known[parameter["name"]]
    for name in ("NewJobSpec", "PatchedJobSpec"):
        document["components"]["schemas"][name]["properties"]["artifact_id"] = known["artifact_id"]
    recovery = document["components"]["schemas"]["RecoverRequest"]["properties"]
    here = {"type": "string", "pattern": "^file://"}  # S3 would be asked over the network
    recovery["store_url"] = {"anyOf": [here, {"type": "null"}]}
    return document


def try_requests(served: RunningControlPlane, directory: Path, document: Any, *options: str) -> tuple[int, int, str]:
    """Lets schemathesis make requests from a document; returns its exit code, the number of requests, and its words."""
    file = directory / "openapi.json"
    file.write_text(json.dumps(document))
    connection = served.process.connection
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION)),
            *("run", str(file), "--url", connection.url, "--header", f"Authorization: Bearer {connection.token}"),
            *("--no-shrink", "--seed", "7", "--output-sanitize", "true", *options),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
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
    document = pointed(served.api.get("/v1/openapi.json"), artifact_id, with_plans="coverage" in phases)
    options = ("--phases", phases, "--max-examples", str(examples))
    code, requests, words = try_requests(served, tmp_path, document, *options)
    assert code == 0, words
    assert "Stateful" in words
    assert "Unresolvable" not in words
    assert requests > requests_min, words


def test_a_document_that_is_not_true_is_found(served: RunningControlPlane, tmp_path: Path) -> None:
    document = served.api.get("/v1/openapi.json")
    shown, listed = document["paths"]["/v1/operations/{operation_id}"], document["paths"]["/v1/jobs"]
    del shown["get"]["responses"]["404"]
    del listed["post"]
    [limit] = [each for each in listed["get"]["parameters"] if each["name"] == "limit"]
    limit.update(schema={"enum": [5000]}, required=True)
    document["paths"] = {"/v1/operations/{operation_id}": shown, "/v1/jobs": listed}
    code, _, words = try_requests(served, tmp_path, document, "--phases", "fuzzing", "--max-examples", "3")
    assert code == 1, words
    assert "undocumented" in words.lower()
    assert "Valid data should have been accepted" in words
