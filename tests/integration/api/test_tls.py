"""A control plane that serves TLS, and its clients: the command line, drivers and browsers."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
import trustme

from keyscale.certificates import trusted_certificates
from keyscale.jobs.protocol.messages import AttachRequest
from keyscale.jobs.runtime.driver.main import DriverEnvironment
from keyscale.jobs.runtime.errors import ControlRefusedError, ControlUnreachableError
from tests.support.control_plane.command_line import run
from tests.support.control_plane.flights_job import FlightsJob
from tests.support.control_plane.running_control_plane import running_control_plane

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.control_plane.command_line import CommandAnswer
    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificate and key of 127.0.0.1, and the authority that signed the certificate."""
    directory = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    for part in issued.cert_chain_pems:
        part.write_to_path(directory / "certificate.pem", append=True)
    return directory


@pytest.fixture(scope="module")
def platform(files: Path) -> Iterator[RunningControlPlane]:
    settings = {
        "KEYSCALE_TLS_CERTIFICATE": str(files / "certificate.pem"),
        "KEYSCALE_TLS_KEY": str(files / "key.pem"),
        "KEYSCALE_CA_FILE": str(files / "ca.pem"),
    }
    with running_control_plane(settings) as running:
        yield running


def command(platform: RunningControlPlane, *arguments: str, **variables: str) -> CommandAnswer:
    return run("--home", str(platform.home), *arguments, **variables)


def test_the_commands_trust_the_authority_of_the_option_or_the_setting_and_no_other(
    platform: RunningControlPlane, files: Path
) -> None:
    assert (platform.home / "address").read_text().startswith("https://127.0.0.1:")
    by_option = command(platform, "--ca-file", str(files / "ca.pem"), "jobs", "list")
    by_setting = command(platform, "jobs", "list", KEYSCALE_CA_FILE=str(files / "ca.pem"))
    assert [by_option.exit_code, by_setting.exit_code] == [0, 0], by_option.stderr + by_setting.stderr
    without = command(platform, "jobs", "list")
    assert without.exit_code == 1
    assert "CLIENT_CONTROL_PLANE_UNREACHABLE" in without.stderr
    assert "certificate" in without.stderr
    for name in ("missing.pem", "key.pem"):
        wrong = command(platform, "--ca-file", str(files / name), "jobs", "list")
        assert (wrong.exit_code, "CLIENT_CA_FILE_UNUSABLE" in wrong.stderr) == (1, True), wrong.stderr


def test_a_driver_trusts_the_authority_of_the_setting_and_no_other(platform: RunningControlPlane, files: Path) -> None:
    request = AttachRequest(pid=1, host="here", spark_ui_url=None)
    variables = {
        "KEYSCALE_WORK_DIR": str(files),
        "KEYSCALE_CONTROL_URL": platform.process.connection.url,
        "KEYSCALE_ATTEMPT": "no-job:1",
        "KEYSCALE_ATTEMPT_TOKEN": "not-an-attempts-token",
    }
    trusting = DriverEnvironment.read({**variables, "KEYSCALE_CA_FILE": str(files / "ca.pem")}).channel()
    with pytest.raises(ControlRefusedError, match="401"):
        trusting.attach(request)
    trusting.close()
    distrusting = DriverEnvironment.read(variables).channel()
    with pytest.raises(ControlUnreachableError, match="certificate"):
        distrusting.attach(request)
    distrusting.close()


def test_over_tls_the_sessions_cookie_is_sent_over_tls_only(platform: RunningControlPlane, files: Path) -> None:
    connection = platform.process.connection
    with httpx.Client(
        base_url=connection.url, verify=trusted_certificates(files / "ca.pem"), trust_env=False
    ) as client:
        answer = client.post("/ui/login", data={"token": connection.token}, headers={"Origin": connection.url})
        assert answer.status_code == 303
        assert "; Secure" in answer.headers["set-cookie"]
        assert client.get("/v1/whoami").json()["role"] == "ADMIN"


def test_plain_http_and_old_tls_get_no_answer(platform: RunningControlPlane, files: Path) -> None:
    url = platform.process.connection.url
    with pytest.raises(httpx.TransportError):
        httpx.get(url.replace("https:", "http:") + "/health", trust_env=False)
    old = trusted_certificates(files / "ca.pem")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health", verify=old, trust_env=False)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["LIVE", "STANDBY"])
def test_a_spark_job_is_started_rescaled_and_drained_over_tls(platform: RunningControlPlane, mode: str) -> None:
    job = FlightsJob(platform, data=platform.home / mode)
    job.create(parallelism=2, name=f"flights-{mode.lower()}", rescale_mode=mode)
    job.start()
    job.deliver_and_wait(4)
    rescale = job.rescale(3)
    job.wait("the rescale", lambda: job.show_rescale(rescale)["status"] == "COMPLETED")
    job.deliver_and_wait(4)
    assert job.show()["status"]["attempt"]["heartbeat_at_ms"] is not None
    job.finish()
    assert job.wrong_checks() == []
