"""The guarantees of docker-compose.yml and the image, checked in the files themselves, without Docker."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.support.repository import ROOT

TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy" / "images" / "Dockerfile").read_text()
RUN_ONCE = {"bucket"}
VARIABLE = re.compile(r"\$\{(\w+)(:[-?])?([^}]*)\}")


def test_only_the_control_plane_is_published_and_only_on_the_loopback_address() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"control-plane": ["${KEYSCALE_PUBLISH:-127.0.0.1:8080}:8080"]}


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_our_own_or_pinned_by_a_tag(name: str) -> None:
    image: str = SERVICES[name]["image"]
    assert image == "keyscale" or re.fullmatch(r".+:(?!latest).*\d.*", image)


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - RUN_ONCE))
def test_every_service_that_stays_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


def test_no_service_waits_for_a_missing_one() -> None:
    for service in SERVICES.values():
        for needed, condition in service.get("depends_on", {}).items():
            assert needed in SERVICES
            ends = condition["condition"] == "service_completed_successfully"
            assert ends == (needed in RUN_ONCE)


def test_every_secret_comes_from_the_environment_and_has_no_default() -> None:
    secrets = {
        (service, key): value
        for service, parts in SERVICES.items()
        for key, value in parts.get("environment", {}).items()
        if re.search(r"PASSWORD|SECRET|TOKEN|_URL$", key) and not str(value).startswith("s3://")
    }
    assert secrets
    for value in secrets.values():
        assert re.search(r"\$\{\w+:\?", value), "a secret without a value must stop the start"


def test_every_variable_is_explained_in_the_example_and_secrets_are_empty_there() -> None:
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    used = {(name, (operator or "")[-1:]) for name, operator, _ in VARIABLE.findall(TEXT)}
    assert {name for name, _ in used} <= example.keys()
    assert {name for name, operator in used if operator == "?"} == {
        name for name, value in example.items() if not value
    }


def test_the_secrets_file_is_never_committed() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_image_installs_the_locked_packages_by_hash_and_runs_as_an_ordinary_user() -> None:
    assert "--no-deps --require-hashes --requirement /tmp/requirements.lock" in DOCKERFILE
    assert re.search(r"^USER (?!root)\w+$", DOCKERFILE, re.MULTILINE)


def test_the_image_copies_existing_files_that_its_context_includes() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    allowed = (ROOT / "deploy" / "images" / "Dockerfile.dockerignore").read_text().splitlines()
    assert copied
    for path in copied:
        assert (ROOT / path).exists()
        assert f"!{path}" in allowed
