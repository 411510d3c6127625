"""A client that a user generates from the OpenAPI document creates, starts, plans, rescales and stops a job."""

from __future__ import annotations

import compileall
import importlib
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_plane.completed_operations import operations_that_complete
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def generated(client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package that is generated from the document that the control plane serves."""
    document, package = tmp_path / "openapi.json", tmp_path / "generated_keyscale"
    document.write_text(json.dumps(client.get("/v1/openapi.json").json()))
    command = ["openapi_python_client", "generate", "--path", document, "--output-path", package, "--meta", "none"]
    result = subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, text=True)
    assert "WARNING parsing" not in result.stdout.replace("WARNING parsing GET /v1/jobs/{job_id}/bundle", "")
    assert compileall.compile_dir(package, quiet=1)
    monkeypatch.syspath_prepend(tmp_path)
    return package.name


def test_a_generated_client_creates_starts_rescales_and_stops_a_job(
    client: httpx.Client, context: Context, generated: str
) -> None:
    types = importlib.import_module(f"{generated}.types")
    models = importlib.import_module(f"{generated}.models")
    plain = importlib.import_module(f"{generated}.client").Client(base_url="http://127.0.0.1").set_httpx_client(client)

    def call(noun: str, name: str, *arguments: Any, **named: Any) -> Any:
        return importlib.import_module(f"{generated}.api.{noun}.{name}").sync(*arguments, client=plain, **named)

    def completed(operation: Any) -> Any:
        def shown() -> Any:
            found = call("operations", "show_operation", operation.id)
            return found if found.status is models.OperationStatus.COMPLETED else None

        return wait_until(shown)

    file = types.File(payload=io.BytesIO(b"print(1)\n"), file_name="visits.py", mime_type="text/x-python")
    program = call("artifacts", "upload_artifact", body=models.BodyUploadArtifact(file=file))
    checkpoints = models.PatchedCheckpointSettings(interval_ms=5000)
    spec = models.NewJobSpec(artifact_id=program.id, parallelism=2, checkpoints=checkpoints)
    job = call("jobs", "create_job", body=models.JobRequest(name="visits", spec=spec))
    assert (job.spec.parallelism, job.spec.checkpoints.interval_ms) == (2, 5000)
    with operations_that_complete(context.sessions):
        start = models.StartRequest(parallelism=3)
        assert completed(call("operations", "start_job", job.id, body=start)).kind is models.OperationKind.START
        patch = models.UpdateRequest(spec=models.PatchedJobSpec(batch_interval_ms=7), dry_run=True)
        planned = call("operations", "update_job", job.id, body=patch)
        assert (planned.status, [each.name for each in planned.plan.settings]) == (None, ["batch_interval_ms"])
        rescale = completed(call("operations", "rescale_job", job.id, body=models.RescaleRequest(parallelism=4)))
        assert (rescale.from_parallelism, rescale.to_parallelism) == (3, 4)
        assert completed(call("operations", "stop_job", job.id)).id
    refused = call("operations", "rescale_job", job.id, body=models.RescaleRequest(parallelism=400))
    assert (refused.code, refused.status) == ("PARALLELISM_OUT_OF_RANGE", 422)
    latest = models.RestoreByLatest(latest=True)
    clone = models.CloneRequest(name="copy", spec=models.PatchedJobSpec(), restore_from=latest)
    assert call("jobs", "clone_job", job.id, body=clone).code == "RESTORE_SOURCE_INVALID"
