"""All settings: one field each, with its description, check and alias.

The reference page is generated from it. What a setting does is in the code that reads it; a server reads its settings
in `cli/serve.py`.
"""

# ruff: noqa: RUF009  `option` makes a field

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from windlass.core.validation import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES
from windlass.net.targets import read_targets
from windlass.settings import value
from windlass.settings.value import Address, Check

T = TypeVar("T")

BLOBS_FOLDER, LAKE_FOLDER = "blobs", "lake"
CONTRACTS_TO_OPEN = ("registry", "machine")
LAUNCHERS = ("process", "docker", "kubernetes", "fly")


class Setting(NamedTuple):
    """The description of a setting. A secret may be mounted as a file; it is masked, or shown as `shown` returns it.
    `check` raises Invalid for a wrong value of the right type. `alias` is an environment variable that is read if the
    variable of the setting is not set."""

    text: str
    secret: bool = False
    shown: Callable[[str], str] | None = None
    check: Check | None = None
    alias: str | None = None


def option(default: T, text: str, **more: Any) -> T:
    """A field of `Settings` with its default and its `Setting`."""
    return field(default=default, metadata={"setting": Setting(text, **more)})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, in the order of the reference page."""

    database_url: str | None = option(
        None,
        "PostgreSQL URL for servers and for workers that connect to the database. None: an embedded PostgreSQL.",
        secret=True,
        shown=value.without_password,
        check=value.database_url,
        alias="DATABASE_URL",
    )
    data_dir: Path = option(Path(".windlass"), "Data folder of the embedded PostgreSQL.")
    blobs: str | None = option(
        None,
        "Object storage, for example for payloads over 2 MiB: file:///FOLDER, s3://BUCKET/PREFIX, gs:// or az://. "
        "All processes that use one database need the same value. None: the folder `blobs` in the data folder, for "
        "the embedded PostgreSQL and `windlass dev`; with any other database, larger payloads are refused.",
        secret=True,
        shown=value.without_options,
    )
    payload_max_bytes: int = option(
        64 * 1024 * 1024,
        "Maximum size of a payload or a result in bytes. Over 2 MiB it is stored as an object.",
        check=value.count(PAYLOAD_MAX_BYTES, LARGE_MAX_BYTES),
    )
    pooled: bool = option(
        False, "Whether clients reach the database through a transaction-mode pooler. Servers then poll it."
    )
    http: Address = option(Address("127.0.0.1", 8420), "Address of the HTTP API, as HOST:PORT.")
    http_certificate: Path | None = option(
        None, "PEM file with the certificate chain of the HTTP API. It is reloaded when replaced. None: no TLS."
    )
    http_key: Path | None = option(None, "PEM file with the key of that certificate.")
    http_header_bytes: int = option(
        32 * 1024,
        "Maximum size of the request line and the headers of a request in bytes.",
        check=value.count(1024, 2**20),
    )
    http_header_count: int = option(100, "Maximum number of headers of a request.", check=value.count(10, 10_000))
    http_request_s: float = option(
        20.0,
        "Seconds within which the headers of a request must arrive and its body must begin. Each 16 KiB of the "
        "body add one second.",
        check=value.seconds(0.1, 3600.0),
    )
    http_connections: int = option(
        4096,
        "Maximum number of connections, for the API and for the internal port each. It is at most about a third "
        "of the files that the process may open.",
    )
    http_address_connections: int = option(
        1024,
        "Maximum number of connections from one address; at most three quarters of all. A new connection replaces "
        "the oldest idle one.",
    )
    request_memory_bytes: int = option(
        128 * 1024 * 1024,
        "Maximum memory for the bodies of all current requests in bytes. A request that gets no room within 20 "
        "seconds is refused (503).",
        check=value.count(2**20, 2**40),
    )
    grpc: Address = option(Address("127.0.0.1", 50051), "Address of the gRPC server for remote workers, as HOST:PORT.")
    grpc_certificate: Path | None = option(
        None, "PEM file with the certificate chain of the gRPC server. It is reloaded when replaced. None: no TLS."
    )
    grpc_key: Path | None = option(None, "PEM file with the key of that certificate.")
    grpc_connections: int = option(
        4096, "Maximum number of connections of the gRPC server; fewer if the process may open too few files."
    )
    grpc_calls: int = option(10_000, "Maximum number of open gRPC calls. A waiting worker has one or more.")
    internal: Address | None = option(
        None, "Address of `/internal/*`, as HOST:PORT, for callers with a client certificate. None: not served."
    )
    internal_certificate: Path | None = option(None, "PEM file with the certificate chain of the internal port.")
    internal_key: Path | None = option(None, "PEM file with the key of that certificate.")
    internal_ca: Path | None = option(
        None, "PEM file with the authorities that sign the client certificates of the internal port."
    )
    scratch_uri: str = option(
        "s3://windlass-scratch",
        "URL under which tasks of the lease contract store batches, each task in its own folders.",
        check=value.plain_uri,
    )
    data_database_url: str | None = option(
        None,
        "PostgreSQL URL of the database with the tables of datasets. None: that of the engine.",
        secret=True,
        shown=value.without_password,
        check=value.database_url,
    )
    sink: bool = option(
        False, "Whether a server writes the batches of buffered datasets to their tables. `windlass dev` always does."
    )
    buffer_keep_s: float = option(
        3600.0, "Seconds after which a batch is deleted that is in its table.", check=value.seconds(0.0)
    )
    buffer_batch_max_bytes: int = option(
        64 * 1024 * 1024,
        "Maximum size of a batch of records in bytes. A larger one becomes a dead letter.",
        check=value.count(1024, 2**30),
    )
    lake: str | None = option(
        None,
        "Object storage for the files of datasets with storage s3: file:///FOLDER or s3://BUCKET/PREFIX. All servers "
        "of a database need the same value, and no two databases may share one. None: the folder `lake` in the data "
        "folder, for the embedded PostgreSQL and `windlass dev`; with any other database, such outputs are refused.",
        secret=True,
        shown=value.without_options,
    )
    staging_keep_s: float = option(
        24 * 3600.0,
        "Seconds for which the lake keeps what an attempt wrote and did not commit, after the attempt is over.",
        check=value.seconds(0.0),
    )
    reconcile_s: float = option(
        30.0,
        "Seconds between two comparisons of what is committed with what jobs were given. An event that was lost makes "
        "its task after so long.",
        check=value.seconds(0.1, most=3600.0),
    )
    open: str | None = option(
        None,
        "Contracts that need no key, separated by commas: registry, machine. Only on loopback, for experiments.",
        check=value.names_of(*CONTRACTS_TO_OPEN),
    )
    poll_timeout_s: float = option(
        60.0,
        "Maximum wait of a long poll in the registry contract, in seconds.",
        check=value.seconds(most=3600.0),
        alias="KAGZI_POLL_TIMEOUT_SECS",
    )
    worker_heartbeat_s: float = option(
        10.0, "Heartbeat interval of workers in the registry contract, in seconds.", check=value.seconds(least=1.0)
    )
    worker_stale_s: float = option(
        30.0,
        "Seconds without a heartbeat after which such a worker is offline.",
        check=value.seconds(least=1.0),
        alias="KAGZI_WORKER_STALE_THRESHOLD_SECS",
    )
    drain_timeout_s: float = option(
        300.0, "Seconds after which a draining worker loses the tasks that it still runs; also for stdio programs."
    )
    url: str | None = option(
        None, "URL of the HTTP API for commands. None: the address in `http`, on this machine.", check=value.http_url
    )
    server: str | None = option(
        None, "URL of the gRPC server for remote apps and workers, as http://HOST:PORT. None: they use the database."
    )
    api_key: str | None = option(None, "API key that commands send. `windlass dev` accepts it.", secret=True)
    namespace: str | None = option(
        None, "Namespace that commands use. None: the namespace of the key.", check=value.name
    )
    metrics: bool = option(True, "Whether servers collect metrics for /metrics.")
    callback_url: str | None = option(
        None, "URL for callbacks of push workers, as they reach it. None: the address of the API.", check=value.http_url
    )
    stdio: bool = option(
        False, "Whether this server runs the programs of queues with stdio delivery. `windlass dev` does."
    )
    launchers: str | None = option(
        None, f"Launchers of machines: {', '.join(LAUNCHERS)}.", check=value.names_of(*LAUNCHERS)
    )
    machine_sweep_s: float = option(
        5.0, "Interval at which machines are compared with their tasks, in seconds.", check=value.seconds(0.1, 3600.0)
    )
    mods_api_url: str | None = option(
        None, "URL from which MODS exports read entities: GET /entities/{pi}.", check=value.http_url
    )
    mods_gateway_url: str | None = option(
        None, "URL from which MODS exports read their parts: GET /ipfs/{cid}.", check=value.http_url
    )
    push_targets: str = option(
        "public",
        "Allowed targets of pushes, separated by commas: public, private, loopback, networks such as 10.0.0.0/8, "
        "host names such as worker.internal or *.svc.cluster.local.",
        check=read_targets,
    )
    push_loopback: bool = option(False, "Whether pushes to loopback are allowed too. `windlass dev` allows them.")
    signing_secret: str | None = option(
        None,
        "Secret that verifies pushes to workers in this program. During a rotation: two, separated by a space.",
        secret=True,
    )
    secret_keys: str | None = option(
        None,
        "Keys that encrypt signing secrets and the keys of workers' tokens in the database: 32 bytes in base64 "
        "each, separated by spaces. The first one encrypts, all decrypt. All servers of a database need the same "
        "keys. None: the secrets are stored unencrypted.",
        secret=True,
    )
    google_token: str | None = option(
        None,
        "Access token for Google Cloud Tasks. None: the token of the machine, from its metadata server.",
        secret=True,
    )
    nats_url: str | None = option(
        None,
        "NATS servers for wake-ups, such as nats://HOST:4222, separated by commas. None: no NATS.",
        secret=True,
        check=value.nats_urls,
    )
    nats_credentials: Path | None = option(None, "Credentials file for NATS.")
    aws_region: str | None = option(
        None, "AWS region, for wake-ups by SQS and for Lambda functions. None: no AWS.", alias="AWS_REGION"
    )
    aws_endpoint_url: str | None = option(
        None, "Endpoint URL that replaces AWS, such as an emulator.", check=value.http_url, alias="AWS_ENDPOINT_URL"
    )
    worker_metrics: Address | None = option(
        None, "Address at which a worker serves its own metrics, as HOST:PORT. None: not served."
    )
    log_format: Literal["text", "json"] = option("text", "Log format of servers and workers.")
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Lowest level of logged messages.")
    keep_finished_s: float = option(604800.0, "Retention of ended tasks and their history, in seconds.")
    scheduler_interval_s: float = option(
        5.0,
        "Interval of the scan for due schedules, in seconds. Known schedules fire on time.",
        check=value.seconds(0.1, 3600.0),
        alias="KAGZI_SCHEDULER_INTERVAL_SECS",
    )
    scheduler_batch: int = option(
        100,
        "Maximum number of schedules that fire in one transaction.",
        check=value.count(),
        alias="KAGZI_SCHEDULER_BATCH_SIZE",
    )
    scheduler_fires_max: int = option(
        1000,
        "Maximum number of tasks that schedules submit in one transaction.",
        check=value.count(),
        alias="KAGZI_SCHEDULER_MAX_WORKFLOWS_PER_TICK",
    )

    @property
    def blobs_url(self) -> str | None:
        """URL of the object storage. None for a shared database, where each process would have its own folder."""
        return self.blobs or (self.blobs_folder if self.database_url is None else None)

    @property
    def blobs_folder(self) -> str:
        """Folder of the object storage if all processes that use the database are on this machine."""
        return str(self.data_dir / BLOBS_FOLDER)

    @property
    def lake_url(self) -> str | None:
        """URL of the lake. None for a shared database, where each server would have its own folder."""
        return self.lake or (self.lake_folder if self.database_url is None else None)

    @property
    def lake_folder(self) -> str:
        """Folder of the lake if all processes that use the database are on this machine."""
        return str(self.data_dir / LAKE_FOLDER)

    @property
    def api_url(self) -> str:
        """URL of the API for commands."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.http.host, self.http.host)  # noqa: S104
        scheme = "http" if self.http_certificate is None else "https"
        return self.url or f"{scheme}://{Address(host, self.http.port)}"

    def is_open(self, contract: str) -> bool:
        """Whether this contract needs no key here."""
        return contract in value.listed(self.open)
