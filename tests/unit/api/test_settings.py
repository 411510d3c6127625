"""The settings that the control plane reads from its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.api.errors import SettingInvalidError
from keyscale.api.settings import Settings
from keyscale.vocabulary import Role

if TYPE_CHECKING:
    from pathlib import Path

OIDC = {"KEYSCALE_OIDC_CLIENT_ID": "keyscale", "KEYSCALE_OIDC_ROLES": "*=viewer"}
ISSUER = {"KEYSCALE_OIDC_ISSUER": "https://id.example.com"}


def test_settings_have_defaults_for_a_laptop(tmp_path: Path) -> None:
    settings = Settings.from_environment({"KEYSCALE_HOME": str(tmp_path)})
    assert (settings.host, settings.port, settings.spark_master) == ("127.0.0.1", 8080, "local")
    assert settings.store_url == (tmp_path / "store").as_uri()
    assert settings.database_url is None
    assert settings.control_url == "http://127.0.0.1:8080"


NUMBERS = {
    "KEYSCALE_STARTS_AT_ONCE": "starts_at_once",
    "KEYSCALE_SPARE_DRIVERS": "spare_drivers",
    "KEYSCALE_SESSION_HOURS": "session_hours",
    "KEYSCALE_USER_REQUESTS_PER_SECOND": "user_requests_per_second",
    "KEYSCALE_ADDRESS_REQUESTS_PER_SECOND": "address_requests_per_second",
    "KEYSCALE_FAILURES_PER_MINUTE": "failures_per_minute",
    "KEYSCALE_KEEP_CHECKPOINTS": "keep_checkpoints",
    "KEYSCALE_KEEP_CHECKPOINT_DETAILS": "keep_checkpoint_details",
    "KEYSCALE_KEEP_ATTEMPTS": "keep_attempts",
    "KEYSCALE_KEEP_OPERATIONS": "keep_operations",
    "KEYSCALE_KEEP_EVENT_DAYS": "keep_event_days",
    "KEYSCALE_JOB_GROUP": "job_group",
}
LARGE_NUMBERS = {
    "KEYSCALE_PORT": "port",
    "KEYSCALE_RESTORE_TIMEOUT_MS": "restore_timeout_ms",
    "KEYSCALE_VERIFY_TIMEOUT_MS": "verify_timeout_ms",
    "KEYSCALE_PLAN_TIMEOUT_MS": "plan_timeout_ms",
    "OTEL_METRIC_EXPORT_INTERVAL": "otlp_interval_ms",
    "KEYSCALE_KEEP_EVENTS": "keep_events",
}
TEXTS = {
    "KEYSCALE_DATABASE_URL": "database_url",
    "KEYSCALE_HOST": "host",
    "KEYSCALE_SPARK_SECRET": "spark_secret",
    "KEYSCALE_JOB_USERS": "job_users",
    "KEYSCALE_DRIVER_MEMORY": "driver_memory",
    "KEYSCALE_STORE_ROLE": "store_role",
}


def test_each_variable_is_a_setting_of_its_own(tmp_path: Path) -> None:
    numbers = {name: str(11 + place) for place, name in enumerate(NUMBERS)}
    numbers |= {name: str(5001 + place) for place, name in enumerate(LARGE_NUMBERS)}
    texts = {name: f"of-{name}" for name in TEXTS}
    more = {
        "KEYSCALE_HOME": str(tmp_path),
        "KEYSCALE_STORE_URL": "s3://bucket/keyscale",
        "KEYSCALE_STS_ENDPOINT": "https://sts.example/",
        "KEYSCALE_S3_ENDPOINT": "https://s3.example",
        "AWS_REGION": "eu-west-1",
        "KEYSCALE_ALLOWED_HOSTS": "A.example,b.example",
        "KEYSCALE_TRUSTED_PROXIES": "10.0.0.1,10.0.0.2",
        "KEYSCALE_JOB_CGROUP": str(tmp_path),
        "KEYSCALE_LOG_FORMAT": "json",
        "KEYSCALE_SMTP_URL": "smtps://mail.example/?from=k@example.com",
        "KEYSCALE_JOB_SECRET_ORDERS": "hidden",
        "KEYSCALE_JOB_CORES_MAX": "3",
        "KEYSCALE_JOB_QUOTA_PROCESSES": "2000",
    }
    settings = Settings.from_environment({**numbers, **texts, **more})
    known = {**NUMBERS, **LARGE_NUMBERS, **TEXTS}
    found = {variable: str(getattr(settings, name)) for variable, name in known.items()}
    assert found == {**numbers, **texts}
    assert (settings.store_url, settings.store_token_endpoint) == ("s3://bucket/keyscale", "https://sts.example")
    stored = ("KEYSCALE_STORE_URL", "KEYSCALE_STORE_ROLE", "KEYSCALE_S3_ENDPOINT", "AWS_REGION")
    assert settings.store_environment == {name: {**texts, **more}[name] for name in stored}
    assert (settings.allowed_hosts, settings.trusted_proxies) == ({"a.example", "b.example"}, ("10.0.0.1", "10.0.0.2"))
    assert (settings.job_cgroup, settings.log_format, settings.allows_private_targets) == (tmp_path, "json", False)
    assert settings.mail_server is not None
    assert (settings.mail_server.host, settings.job_secrets.variables_of(["ORDERS"])) == (
        "mail.example",
        {"KEYSCALE_JOB_SECRET_ORDERS": "hidden"},
    )
    assert (settings.job_limits.cores_max, settings.job_quota.processes_max) == (3, 2000)


def test_a_collector_is_named_by_opentelemetrys_variables(tmp_path: Path) -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/", "OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%20b, y=2"}
    settings = Settings.from_environment({"KEYSCALE_HOME": str(tmp_path), **given})
    assert (settings.otlp_endpoint, settings.otlp_interval_ms) == ("http://c:4318", 60_000)
    assert settings.otlp_headers == {"x-token": "a b", "y": "2"}
    assert Settings.from_environment({"KEYSCALE_HOME": str(tmp_path)}).otlp_endpoint is None


@pytest.mark.parametrize(
    "variables",
    [
        {"KEYSCALE_LOG_FORMAT": "xml"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"},
        {"OTEL_EXPORTER_OTLP_HEADERS": "token"},
        {"KEYSCALE_PORT": "eighty"},
        {"KEYSCALE_PORT": "70000"},
        {"KEYSCALE_PORT": "-1"},
        {"KEYSCALE_STORE_URL": "http://x"},
        {"KEYSCALE_RESTORE_TIMEOUT_MS": "10m"},
        {"KEYSCALE_VERIFY_TIMEOUT_MS": "999"},
        {"KEYSCALE_SESSION_HOURS": "0"},
        {"KEYSCALE_STARTS_AT_ONCE": "0"},
        {"KEYSCALE_JOB_QUOTA_MEMORY": "much"},
        {"KEYSCALE_JOB_CGROUP": "/no/such/directory"},
        {"KEYSCALE_FAILURES_PER_MINUTE": "-1"},
        {"KEYSCALE_TLS_CERTIFICATE": "/no/such/file"},
        {"KEYSCALE_TLS_CERTIFICATE": "/no/such/file", "KEYSCALE_TLS_KEY": "/no/such/file"},
        {"KEYSCALE_TLS_CERTIFICATE": __file__, "KEYSCALE_TLS_KEY": __file__},
        {"KEYSCALE_CA_FILE": "/no/such/file"},
        {"KEYSCALE_CA_FILE": __file__},
        {"KEYSCALE_CONTROL_URL": "keyscale.example.com"},
        {"KEYSCALE_OIDC_ISSUER": "http://id.example.com", **OIDC},
        {"KEYSCALE_OIDC_CLIENT_ID": "", **ISSUER},
        {"KEYSCALE_OIDC_ROLES": "", **ISSUER, "KEYSCALE_OIDC_CLIENT_ID": "keyscale"},
        {"KEYSCALE_OIDC_ROLES": "team=root", **ISSUER, "KEYSCALE_OIDC_CLIENT_ID": "keyscale"},
        {"KEYSCALE_OIDC_ROLES": "viewer", **ISSUER, "KEYSCALE_OIDC_CLIENT_ID": "keyscale"},
        {"KEYSCALE_OIDC_JOB_LABELS": "billing", **ISSUER, **OIDC},
        {"KEYSCALE_OIDC_JOB_LABELS": "billing=team", **ISSUER, **OIDC},
        {"KEYSCALE_OIDC_JOB_LABELS": "billing=team:", **ISSUER, **OIDC},
        {"KEYSCALE_OIDC_JOB_LABELS": "=team:billing", **ISSUER, **OIDC},
    ],
)
def test_a_setting_that_cannot_be_used_is_named(variables: dict[str, str]) -> None:
    with pytest.raises(SettingInvalidError, match=next(iter(variables))):
        Settings.from_environment(variables)


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:80"), ("::1", "http://[::1]:80"), ("cp.example", "http://cp.example:80")],  # noqa: S104 - nothing is bound
)
def test_drivers_get_an_address_that_they_can_connect_to(tmp_path: Path, host: str, url: str) -> None:
    assert Settings(home=tmp_path, host=host, port=80).control_url == url


def test_a_home_that_spark_would_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalidError, match="comma"):
        Settings.from_environment({"KEYSCALE_HOME": str(tmp_path / "a,b")})


def test_the_issuer_and_its_roles_are_settings() -> None:
    openid = Settings.from_environment({**ISSUER, **OIDC, "KEYSCALE_OIDC_ROLES": "a=b=admin, ops=OPERATOR"}).openid
    assert openid is not None
    assert openid.roles == {"a=b": Role.ADMIN, "ops": Role.OPERATOR}
    assert (openid.audience, openid.role_claim, openid.client_secret) == ("keyscale", "groups", None)
    assert openid.job_labels == ()
    assert Settings.from_environment({}).openid is None


def test_the_issuers_users_may_reach_the_jobs_with_some_labels_only() -> None:
    text = "billing=team:billing, streams=team:billing,streams=stage:live,support=*"
    openid = Settings.from_environment({**ISSUER, **OIDC, "KEYSCALE_OIDC_JOB_LABELS": text}).openid
    assert openid is not None
    assert openid.job_labels == (
        ("billing", ("team", "billing")),
        ("streams", ("team", "billing")),
        ("streams", ("stage", "live")),
        ("support", None),
    )


def test_drivers_and_commands_call_the_url_of_the_setting(tmp_path: Path) -> None:
    settings = Settings.from_environment({"KEYSCALE_CONTROL_URL": "https://keyscale.example.com/"})
    assert settings.control_url == "https://keyscale.example.com"
    assert Settings(home=tmp_path, tls_certificate=tmp_path, port=80).control_url == "https://127.0.0.1:80"


def test_jars_and_further_spark_settings_are_the_administrators_choice(tmp_path: Path) -> None:
    home = {"KEYSCALE_HOME": str(tmp_path)}
    assert Settings.from_environment(home).jar_rules.allowed == {"*"}
    chosen = Settings.from_environment(
        {
            **home,
            "KEYSCALE_JARS_ALLOWED": "codec.jar, other.jar",
            "KEYSCALE_SPARK_JARS": str(tmp_path),
            "KEYSCALE_SPARK_CONF_ALLOWED": "spark.sql.extensions,spark.sql.catalog.*",
        }
    )
    assert chosen.jar_rules.allowed == {"codec.jar", "other.jar"}
    assert chosen.jar_rules.packages_directory == tmp_path
    assert chosen.spark_conf_allowed == {"spark.sql.extensions", "spark.sql.catalog.*"}
    with pytest.raises(SettingInvalidError, match="KEYSCALE_SPARK_JARS"):
        Settings.from_environment({**home, "KEYSCALE_SPARK_JARS": str(tmp_path / "none")})
