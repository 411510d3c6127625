"""The control plane's settings, read from environment variables."""

from __future__ import annotations

import grp
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from keyscale import log_lines
from keyscale.certificates import trusted_certificates
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.vocabulary import Role

from .errors import SettingInvalidError
from .job_limits import JobLimits
from .job_quota import JobQuota
from .job_secrets import JobSecrets
from .libraries.jar_rules import JarRules
from .mail_server import MailServer

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_DURATION_MS_MAX = 7 * 24 * 3600 * 1000
_STORE_VARIABLE_PREFIXES = ("AWS_", "KEYSCALE_S3_", "KEYSCALE_STORE_")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class OpenIdSettings:
    """The OpenID Connect issuer of users of the control plane.

    Attributes:
        issuer: Its URL, exactly as its tokens name it.
        client_id: The control plane's id at the issuer.
        client_secret: The control plane's secret at the issuer, if any.
        audience: The audience of bearer tokens for the API.
        roles: The roles by values of the claim; `*` is every user.
        role_claim: The claim, such as `groups`, or `realm_access.roles` for a nested one.
        job_labels: By values of the claim, a label (name and value) of jobs that the user reaches; the value `*` is
            every user, and None instead of a label every job. Without labels, every user reaches every job.
        scopes: The scopes that a sign-in requests, separated by spaces.
    """

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    audience: str = ""
    roles: Mapping[str, Role] = field(default_factory=dict)
    role_claim: str = "groups"
    job_labels: tuple[tuple[str, tuple[str, str] | None], ...] = ()
    scopes: str = "openid profile email"


@dataclass(frozen=True, slots=True)
class Settings:
    """The control plane's settings; see `from_environment` for the variables.

    Attributes:
        home: The directory of the embedded database, the admin token, the drivers' logs and the local store.
        database_url: The PostgreSQL to use; None: start the embedded one under `home`.
        store_url: Root of all snapshots; fixed for a job when the job is created.
        spark_master: `local` means a local master with one core per subtask and one extra core.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        allowed_hosts: Host names under which the API may be called, besides loopback names.
        artifact_bytes_max: Largest size of an upload.
        store_environment: Variables that only the object store's client reads; passed on to drivers.
        store_role: A role of the store; drivers get its credentials, narrowed to their job. None: drivers get the
            control plane's credentials.
        store_token_endpoint: Address of the service that grants these credentials; None: the address in AWS's
            configuration.
        job_secrets: The secrets that jobs may name.
        job_limits: The limits of a job.
        job_quota: The most that one driver of a job may take of its host.
        job_cgroup: The cgroup (version 2) below which drivers have theirs; None: the means are chosen by the host.
        jar_rules: The jars that jobs may have.
        spark_conf_allowed: Further Spark settings that jobs may choose; `prefix.*` allows all settings below.
        spark_secret: Shared by all processes of a Spark cluster, which then prove to each other that they know it.
        job_users: Range of users for jobs, or `off`; None: a default range, where jobs can have users of their own.
        job_group: A group of all these users, for files that jobs share.
        starts_at_once: How many drivers start on this host at once.
        spare_drivers: How many spare drivers this host keeps, if it has the memory.
        driver_memory: Heap of a driver's JVM, as Spark writes it.
        restore_timeout_ms: How long the new driver of a rescale may take to restore the savepoint.
        verify_timeout_ms: How long it may then take to commit its first batch.
        plan_timeout_ms: How long a plan may take to load a program, and to read what its job has stored.
        session_hours: How long a browser stays signed in.
        user_requests_per_second: Requests of one user; 0: without limit.
        address_requests_per_second: Requests from one address; 0: without limit.
        failures_per_minute: Requests without a valid token, and failed sign-ins, from one address; 0: without limit.
        log_format: The form of log lines: `text` or `json`.
        otlp_endpoint: URL of the collector that gets metrics and traces; None: none.
        otlp_headers: Headers of requests to the collector.
        otlp_interval_ms: Time between two pushes of metrics.
        tls_certificate: PEM file with the certificate and its chain; None: plain HTTP.
        tls_key: PEM file with the certificate's private key.
        ca_file: PEM file with further certificate authorities that drivers trust, and the control plane as a client of
            the issuer.
        own_url: The URL at which drivers and commands reach the control plane, if it differs from `host` and `port`.
        openid: The issuer whose users may sign in; None: tokens only.
        trusted_proxies: Addresses whose X-Forwarded-For and X-Forwarded-Proto are believed.
        keep_checkpoints: Checkpoints in the history of a job; checkpoints in the store stay in any case.
        keep_checkpoint_details: How many of these keep their subtasks' metrics.
        keep_attempts: Ended attempts in the history of a job.
        keep_operations: Ended operations in the history of a job.
        keep_event_days: Age of the oldest events.
        keep_events: The most events, without refused requests.
        allows_private_targets: Whether notifications may go to private and loopback addresses, and without TLS.
        mail_server: Sends notifications by mail; None: there is none.
    """

    home: Path
    database_url: str | None = None
    store_url: str = ""
    spark_master: str = "local"
    host: str = "127.0.0.1"
    port: int = 8080
    allowed_hosts: frozenset[str] = frozenset()
    artifact_bytes_max: int = 256 << 20
    store_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    store_role: str | None = None
    store_token_endpoint: str | None = None
    job_secrets: JobSecrets = field(default_factory=JobSecrets)
    job_limits: JobLimits = field(default_factory=JobLimits)
    job_quota: JobQuota = field(default_factory=JobQuota)
    job_cgroup: Path | None = None
    jar_rules: JarRules = field(default_factory=JarRules)
    spark_conf_allowed: frozenset[str] = frozenset()
    spark_secret: str = field(default="", repr=False)
    job_users: str | None = None
    job_group: int | None = None
    starts_at_once: int = field(default_factory=_usable_cores)
    spare_drivers: int = 1
    driver_memory: str = "1g"
    restore_timeout_ms: int = 600_000
    verify_timeout_ms: int = 120_000
    plan_timeout_ms: int = 120_000
    session_hours: int = 12
    user_requests_per_second: int = 200
    address_requests_per_second: int = 1000
    failures_per_minute: int = 20
    trusted_proxies: tuple[str, ...] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    ca_file: Path | None = None
    own_url: str = ""
    openid: OpenIdSettings | None = None
    keep_checkpoints: int = 1000
    keep_checkpoint_details: int = 100
    keep_attempts: int = 100
    keep_operations: int = 1000
    keep_event_days: int = 90
    keep_events: int = 1_000_000
    log_format: str = log_lines.TEXT
    otlp_endpoint: str | None = None
    otlp_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    otlp_interval_ms: int = 60_000
    allows_private_targets: bool = True
    mail_server: MailServer | None = None

    @property
    def control_url(self) -> str:
        """The URL at which drivers and other replicas reach the control plane."""
        if self.own_url:
            return self.own_url
        scheme = "http" if self.tls_certificate is None else "https"
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - compared, not bound
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def runs_directory(self) -> Path:
        """The directory with one directory per job and attempt.

        An attempt's directory has the files of the launcher and the driver.
        """
        return self.home / "runs"

    @property
    def token_file(self) -> Path:
        return self.home / "token"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads the KEYSCALE_ variables of the environment.

        Raises:
            SettingInvalidError: A variable has an invalid value.
        """
        source = os.environ if environment is None else environment
        home = Path(source.get("KEYSCALE_HOME") or ".keyscale").expanduser().absolute()
        if "," in str(home):
            raise SettingInvalidError("KEYSCALE_HOME must not contain a comma: Spark would read it as two directories")
        default = cls(home)
        port = source.get("KEYSCALE_PORT") or str(default.port)
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise SettingInvalidError("KEYSCALE_PORT must be a number from 0 to 65535")
        spark_master = source.get("KEYSCALE_SPARK_MASTER") or default.spark_master
        store_url = source.get("KEYSCALE_STORE_URL") or (home / "store").as_uri()
        if not store_url.startswith(("file:///", "s3://")):
            raise SettingInvalidError("KEYSCALE_STORE_URL must begin with file:/// or s3://")
        store_role = source.get("KEYSCALE_STORE_ROLE") or None
        if store_role is not None and not store_url.startswith("s3://"):
            raise SettingInvalidError("KEYSCALE_STORE_ROLE needs a KEYSCALE_STORE_URL that begins with s3://")
        if store_role is not None and not spark_master.startswith("local"):
            raise SettingInvalidError("KEYSCALE_STORE_ROLE: executors of a cluster have credentials of their own")
        certificate, key = _tls_files(source)
        return cls(
            home=home,
            database_url=source.get("KEYSCALE_DATABASE_URL") or None,
            store_url=store_url,
            spark_master=spark_master,
            host=source.get("KEYSCALE_HOST") or default.host,
            port=int(port),
            allowed_hosts=frozenset(filter(None, (source.get("KEYSCALE_ALLOWED_HOSTS") or "").lower().split(","))),
            store_environment={
                name: value for name, value in source.items() if name.startswith(_STORE_VARIABLE_PREFIXES)
            },
            store_role=store_role,
            store_token_endpoint=_url(source, "KEYSCALE_STS_ENDPOINT") or source.get("KEYSCALE_S3_ENDPOINT") or None,
            job_secrets=JobSecrets(
                {name: value for name, value in source.items() if name.startswith(JOB_SECRET_PREFIX)},
                _directory(source, "KEYSCALE_JOB_SECRETS_DIRECTORY"),
            ),
            job_limits=JobLimits.from_environment(source),
            job_quota=JobQuota.from_environment(source),
            job_cgroup=_directory(source, "KEYSCALE_JOB_CGROUP"),
            jar_rules=JarRules(
                _words(source, "KEYSCALE_JARS_ALLOWED") or frozenset({"*"}),
                _directory(source, "KEYSCALE_SPARK_JARS"),
            ),
            spark_conf_allowed=_words(source, "KEYSCALE_SPARK_CONF_ALLOWED"),
            log_format=_log_format(source),
            otlp_endpoint=_url(source, "OTEL_EXPORTER_OTLP_ENDPOINT") or None,
            otlp_headers=_otlp_headers(source),
            otlp_interval_ms=_duration_ms(source, "OTEL_METRIC_EXPORT_INTERVAL", default.otlp_interval_ms),
            spark_secret=source.get("KEYSCALE_SPARK_SECRET") or "",
            job_users=source.get("KEYSCALE_JOB_USERS") or None,
            job_group=_group(source.get("KEYSCALE_JOB_GROUP")),
            starts_at_once=_number(source, "KEYSCALE_STARTS_AT_ONCE", default.starts_at_once, least=1),
            spare_drivers=_number(source, "KEYSCALE_SPARE_DRIVERS", default.spare_drivers, most=100),
            driver_memory=source.get("KEYSCALE_DRIVER_MEMORY") or default.driver_memory,
            restore_timeout_ms=_duration_ms(source, "KEYSCALE_RESTORE_TIMEOUT_MS", default.restore_timeout_ms),
            verify_timeout_ms=_duration_ms(source, "KEYSCALE_VERIFY_TIMEOUT_MS", default.verify_timeout_ms),
            plan_timeout_ms=_duration_ms(source, "KEYSCALE_PLAN_TIMEOUT_MS", default.plan_timeout_ms),
            session_hours=_number(source, "KEYSCALE_SESSION_HOURS", default.session_hours, least=1, most=24 * 365),
            user_requests_per_second=_number(
                source, "KEYSCALE_USER_REQUESTS_PER_SECOND", default.user_requests_per_second
            ),
            address_requests_per_second=_number(
                source, "KEYSCALE_ADDRESS_REQUESTS_PER_SECOND", default.address_requests_per_second
            ),
            failures_per_minute=_number(source, "KEYSCALE_FAILURES_PER_MINUTE", default.failures_per_minute),
            tls_certificate=certificate,
            tls_key=key,
            ca_file=_ca_file(source),
            own_url=_url(source, "KEYSCALE_CONTROL_URL"),
            openid=_openid(source),
            trusted_proxies=tuple(filter(None, (source.get("KEYSCALE_TRUSTED_PROXIES") or "").split(","))),
            keep_checkpoints=_number(source, "KEYSCALE_KEEP_CHECKPOINTS", default.keep_checkpoints, least=1),
            keep_checkpoint_details=_number(
                source, "KEYSCALE_KEEP_CHECKPOINT_DETAILS", default.keep_checkpoint_details, least=1
            ),
            keep_attempts=_number(source, "KEYSCALE_KEEP_ATTEMPTS", default.keep_attempts, least=1),
            keep_operations=_number(source, "KEYSCALE_KEEP_OPERATIONS", default.keep_operations, least=1),
            keep_events=_number(source, "KEYSCALE_KEEP_EVENTS", default.keep_events, least=1000, most=100_000_000),
            keep_event_days=_number(source, "KEYSCALE_KEEP_EVENT_DAYS", default.keep_event_days, least=1),
            allows_private_targets=_allows_private_targets(source),
            mail_server=_mail_server(source),
        )


def _number(source: Mapping[str, str], name: str, default: int, *, least: int = 0, most: int = 1_000_000) -> int:
    text = source.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise SettingInvalidError(f"{name} must be a number from {least} to {most}")
    return int(text)


def _duration_ms(source: Mapping[str, str], name: str, default_ms: int) -> int:
    text = source.get(name) or str(default_ms)
    if not text.isascii() or not text.isdigit() or not 1000 <= int(text) <= _DURATION_MS_MAX:
        raise SettingInvalidError(f"{name} must be a number of milliseconds from 1000 to {_DURATION_MS_MAX}")
    return int(text)


def _directory(source: Mapping[str, str], name: str) -> Path | None:
    path = source.get(name)
    if not path:
        return None
    if not Path(path).is_dir():
        raise SettingInvalidError(f"{name}: {path} is not a directory")
    return Path(path).absolute()


def _words(source: Mapping[str, str], name: str) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in (source.get(name) or "").split(","))))


def _tls_files(source: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    certificate, key = source.get("KEYSCALE_TLS_CERTIFICATE"), source.get("KEYSCALE_TLS_KEY")
    if not certificate and not key:
        return None, None
    if not certificate or not key:
        raise SettingInvalidError("KEYSCALE_TLS_CERTIFICATE and KEYSCALE_TLS_KEY are needed together")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:
        reason = error.strerror or "the files are not a PEM certificate and its unencrypted key"
        raise SettingInvalidError(f"KEYSCALE_TLS_CERTIFICATE, KEYSCALE_TLS_KEY: {reason}") from error
    return Path(certificate).absolute(), Path(key).absolute()


def _ca_file(source: Mapping[str, str]) -> Path | None:
    file = source.get("KEYSCALE_CA_FILE")
    if not file:
        return None
    try:
        trusted_certificates(file)
    except OSError as error:
        raise SettingInvalidError(f"KEYSCALE_CA_FILE: {error.strerror or 'it holds no PEM certificate'}") from error
    return Path(file).absolute()


def _url(source: Mapping[str, str], name: str) -> str:
    text = (source.get(name) or "").rstrip("/")
    parts = urlsplit(text)
    if text and (parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment):
        raise SettingInvalidError(f"{name} must be a URL that begins with https:// or http://")
    return text


def _allows_private_targets(source: Mapping[str, str]) -> bool:
    """Returns whether notifications may go to private addresses.

    By default they may on a control plane with an embedded database, which runs on its user's machine.
    """
    text = source.get("KEYSCALE_PRIVATE_TARGETS") or ("refused" if source.get("KEYSCALE_DATABASE_URL") else "allowed")
    if text not in {"allowed", "refused"}:
        raise SettingInvalidError("KEYSCALE_PRIVATE_TARGETS must be allowed or refused")
    return text == "allowed"


def _mail_server(source: Mapping[str, str]) -> MailServer | None:
    text = source.get("KEYSCALE_SMTP_URL")
    try:
        return MailServer.of_url(text) if text else None
    except ValueError:
        raise SettingInvalidError(
            "KEYSCALE_SMTP_URL must be smtp://USER:PASSWORD@HOST:PORT/?from=ADDRESS, or smtps:// with TLS"
        ) from None


def _openid(source: Mapping[str, str]) -> OpenIdSettings | None:
    issuer = source.get("KEYSCALE_OIDC_ISSUER") or ""
    if not issuer:
        return None
    parts = urlsplit(_url(source, "KEYSCALE_OIDC_ISSUER"))
    if parts.scheme != "https" and parts.hostname not in LOOPBACK_HOSTS:
        raise SettingInvalidError("KEYSCALE_OIDC_ISSUER must begin with https://")
    client_id = source.get("KEYSCALE_OIDC_CLIENT_ID") or ""
    if not client_id:
        raise SettingInvalidError("KEYSCALE_OIDC_ISSUER needs KEYSCALE_OIDC_CLIENT_ID")
    defaults = OpenIdSettings(issuer, client_id)
    return OpenIdSettings(
        issuer=issuer,
        client_id=client_id,
        client_secret=source.get("KEYSCALE_OIDC_CLIENT_SECRET") or None,
        audience=source.get("KEYSCALE_OIDC_AUDIENCE") or client_id,
        roles=_roles(source.get("KEYSCALE_OIDC_ROLES") or ""),
        role_claim=source.get("KEYSCALE_OIDC_ROLE_CLAIM") or defaults.role_claim,
        job_labels=_job_labels(source.get("KEYSCALE_OIDC_JOB_LABELS") or ""),
        scopes=source.get("KEYSCALE_OIDC_SCOPES") or defaults.scopes,
    )


def _roles(text: str) -> dict[str, Role]:
    roles = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        value, _, role = pair.rpartition("=")
        if not value or role.upper() not in Role.__members__:
            raise SettingInvalidError(
                "KEYSCALE_OIDC_ROLES must be VALUE=ROLE,... with the roles viewer, operator, admin"
            )
        roles[value] = Role(role.upper())
    if not roles:
        raise SettingInvalidError("KEYSCALE_OIDC_ROLES is empty, so sign-in is impossible")
    return roles


def _job_labels(text: str) -> tuple[tuple[str, tuple[str, str] | None], ...]:
    found: list[tuple[str, tuple[str, str] | None]] = []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        value, _, label = pair.rpartition("=")
        name, _, wanted = label.partition(":")
        if not value or (label != "*" and not (name and wanted)):
            raise SettingInvalidError(
                "KEYSCALE_OIDC_JOB_LABELS must be VALUE=NAME:LABEL,... with a label's name and value, or VALUE=*"
            )
        found.append((value, None if label == "*" else (name, wanted)))
    return tuple(found)


def _group(name: str | None) -> int | None:
    if not name:
        return None
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise SettingInvalidError(f"KEYSCALE_JOB_GROUP: the group {name} does not exist") from None


def _log_format(source: Mapping[str, str]) -> str:
    given = source.get(log_lines.FORMAT_VARIABLE) or log_lines.TEXT
    if given not in log_lines.FORMATS:
        raise SettingInvalidError(f"{log_lines.FORMAT_VARIABLE} must be {' or '.join(log_lines.FORMATS)}")
    return given


def _otlp_headers(source: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers of requests to a collector.

    OpenTelemetry writes them as NAME=VALUE, separated by commas.
    """
    given = source.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
    pairs = [part.partition("=") for part in given.split(",") if part]
    if any(not name.strip() or not separator for name, separator, _ in pairs):
        raise SettingInvalidError("OTEL_EXPORTER_OTLP_HEADERS must be NAME=VALUE, separated by commas")
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
