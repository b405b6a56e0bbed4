"""All settings: one field each, with its description, check and alias.

A new setting is a field here and nothing else; the reference page is generated from it. What a setting does is in the
code that reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from windlass.core.validation import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES
from windlass.settings import value
from windlass.settings.value import Address, Check

BLOBS_FOLDER = "blobs"
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


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, in the order of the reference page."""

    database_url: Annotated[
        str | None,
        Setting(
            "PostgreSQL URL for servers and for workers that connect to the database. None: an embedded PostgreSQL.",
            secret=True, shown=value.without_password, check=value.database_url, alias="DATABASE_URL",
        ),
    ] = None  # fmt: skip
    data_dir: Annotated[Path, Setting("Data folder of the embedded PostgreSQL.")] = Path(".windlass")
    blobs: Annotated[
        str | None,
        Setting(
            "Object storage, for example for payloads over 2 MiB: file:///FOLDER, s3://BUCKET/PREFIX, gs:// or az://. "
            "All processes that use one database need the same value. None: the folder `blobs` in the data folder, for "
            "the embedded PostgreSQL and `windlass dev`; with any other database, larger payloads are refused.",
            secret=True, shown=value.without_options,
        ),
    ] = None  # fmt: skip
    payload_max_bytes: Annotated[
        int,
        Setting(
            "Maximum size of a payload or a result in bytes. Over 2 MiB it is stored as an object.",
            check=value.count(PAYLOAD_MAX_BYTES, LARGE_MAX_BYTES),
        ),
    ] = 64 * 1024 * 1024
    pooled: Annotated[
        bool, Setting("Whether clients reach the database through a transaction-mode pooler. Servers then poll it.")
    ] = False
    http: Annotated[Address, Setting("Address of the HTTP API, as HOST:PORT.")] = Address("127.0.0.1", 8420)
    http_certificate: Annotated[
        Path | None,
        Setting("PEM file with the certificate chain of the HTTP API. It is reloaded when replaced. None: no TLS."),
    ] = None
    http_key: Annotated[Path | None, Setting("PEM file with the key of that certificate.")] = None
    http_header_bytes: Annotated[
        int,
        Setting(
            "Maximum size of the request line and the headers of a request in bytes.", check=value.count(1024, 2**20)
        ),
    ] = 32 * 1024
    http_header_count: Annotated[
        int, Setting("Maximum number of headers of a request.", check=value.count(10, 10_000))
    ] = 100
    http_request_s: Annotated[
        float,
        Setting(
            "Seconds within which the headers of a request must arrive and its body must begin. Each 16 KiB of the "
            "body add one second.",
            check=value.seconds(0.1, 3600.0),
        ),
    ] = 20.0
    http_connections: Annotated[
        int,
        Setting(
            "Maximum number of connections, for the API and for the internal port each. It is at most about a third "
            "of the files that the process may open.",
        ),
    ] = 4096
    http_address_connections: Annotated[
        int,
        Setting(
            "Maximum number of connections from one address; at most three quarters of all. A new connection replaces "
            "the oldest idle one.",
        ),
    ] = 1024
    request_memory_bytes: Annotated[
        int,
        Setting(
            "Maximum memory for the bodies of all current requests in bytes. A request that gets no room within 20 "
            "seconds is refused (503).",
            check=value.count(2**20, 2**40),
        ),
    ] = 128 * 1024 * 1024
    grpc: Annotated[Address, Setting("Address of the gRPC server for remote workers, as HOST:PORT.")] = Address(
        "127.0.0.1", 50051
    )
    grpc_certificate: Annotated[
        Path | None,
        Setting("PEM file with the certificate chain of the gRPC server. It is reloaded when replaced. None: no TLS."),
    ] = None
    grpc_key: Annotated[Path | None, Setting("PEM file with the key of that certificate.")] = None
    grpc_connections: Annotated[
        int, Setting("Maximum number of connections of the gRPC server; fewer if the process may open too few files.")
    ] = 4096
    grpc_calls: Annotated[int, Setting("Maximum number of open gRPC calls. A waiting worker has one or more.")] = 10_000
    internal: Annotated[
        Address | None,
        Setting("Address of `/internal/*`, as HOST:PORT, for callers with a client certificate. None: not served."),
    ] = None
    internal_certificate: Annotated[
        Path | None, Setting("PEM file with the certificate chain of the internal port.")
    ] = None
    internal_key: Annotated[Path | None, Setting("PEM file with the key of that certificate.")] = None
    internal_ca: Annotated[
        Path | None, Setting("PEM file with the authorities that sign the client certificates of the internal port.")
    ] = None
    scratch_uri: Annotated[
        str,
        Setting(
            "URL under which tasks of the lease contract store batches, each task in its own folders.",
            check=value.plain_uri,
        ),
    ] = "s3://windlass-scratch"
    open: Annotated[
        str | None,
        Setting(
            "Contracts that need no key, separated by commas: registry, machine. Only on loopback, for experiments.",
            check=value.names_of(*CONTRACTS_TO_OPEN),
        ),
    ] = None
    poll_timeout_s: Annotated[
        float,
        Setting(
            "Maximum wait of a long poll in the registry contract, in seconds.",
            check=value.seconds(most=3600.0), alias="KAGZI_POLL_TIMEOUT_SECS",
        ),
    ] = 60.0  # fmt: skip
    worker_heartbeat_s: Annotated[
        float,
        Setting("Heartbeat interval of workers in the registry contract, in seconds.", check=value.seconds(least=1.0)),
    ] = 10.0
    worker_stale_s: Annotated[
        float,
        Setting(
            "Seconds without a heartbeat after which such a worker is offline.",
            check=value.seconds(least=1.0), alias="KAGZI_WORKER_STALE_THRESHOLD_SECS",
        ),
    ] = 30.0  # fmt: skip
    drain_timeout_s: Annotated[
        float,
        Setting("Seconds after which a draining worker loses the tasks that it still runs; also for stdio programs."),
    ] = 300.0
    url: Annotated[
        str | None,
        Setting(
            "URL of the HTTP API for commands. None: the address in `http`, on this machine.",
            check=value.http_url,
        ),
    ] = None
    server: Annotated[
        str | None,
        Setting(
            "URL of the gRPC server for remote apps and workers, as http://HOST:PORT. None: they use the database."
        ),
    ] = None
    api_key: Annotated[str | None, Setting("API key that commands send. `windlass dev` accepts it.", secret=True)] = (
        None
    )
    namespace: Annotated[
        str | None,
        Setting("Namespace that commands use. None: the namespace of the key.", check=value.name),
    ] = None
    metrics: Annotated[bool, Setting("Whether servers collect metrics for /metrics.")] = True
    callback_url: Annotated[
        str | None,
        Setting(
            "URL for callbacks of push workers, as they reach it. None: the address of the API.",
            check=value.http_url,
        ),
    ] = None
    stdio: Annotated[
        bool, Setting("Whether this server runs the programs of queues with stdio delivery. `windlass dev` does.")
    ] = False
    launchers: Annotated[
        str | None,
        Setting(f"Launchers of machines: {', '.join(LAUNCHERS)}.", check=value.names_of(*LAUNCHERS)),
    ] = None
    machine_sweep_s: Annotated[
        float,
        Setting(
            "Interval at which machines are compared with their tasks, in seconds.", check=value.seconds(0.1, 3600.0)
        ),
    ] = 5.0
    mods_api_url: Annotated[
        str | None, Setting("URL from which MODS exports read entities: GET /entities/{pi}.", check=value.http_url)
    ] = None
    mods_gateway_url: Annotated[
        str | None, Setting("URL from which MODS exports read their parts: GET /ipfs/{cid}.", check=value.http_url)
    ] = None
    push_targets: Annotated[
        str,
        Setting(
            "Allowed targets of pushes, separated by commas: public, private, loopback, networks such as 10.0.0.0/8, "
            "host names such as worker.internal or *.svc.cluster.local.",
            check=value.targets,
        ),
    ] = "public"
    push_loopback: Annotated[
        bool, Setting("Whether pushes to loopback are allowed too. `windlass dev` allows them.")
    ] = False
    signing_secret: Annotated[
        str | None,
        Setting(
            "Secret that verifies pushes to workers in this program. During a rotation: two, separated by a space.",
            secret=True,
        ),
    ] = None
    secret_keys: Annotated[
        str | None,
        Setting(
            "Keys that encrypt signing secrets and the keys of workers' tokens in the database: 32 bytes in base64 "
            "each, separated by spaces. The first one encrypts, all decrypt. All servers of a database need the same "
            "keys. None: the secrets are stored unencrypted.",
            secret=True,
        ),
    ] = None
    google_token: Annotated[
        str | None,
        Setting(
            "Access token for Google Cloud Tasks. None: the token of the machine, from its metadata server.",
            secret=True,
        ),
    ] = None
    nats_url: Annotated[
        str | None,
        Setting(
            "NATS servers for wake-ups, such as nats://HOST:4222, separated by commas. None: no NATS.",
            secret=True, check=value.nats_urls,
        ),
    ] = None  # fmt: skip
    nats_credentials: Annotated[Path | None, Setting("Credentials file for NATS.")] = None
    aws_region: Annotated[
        str | None,
        Setting("AWS region, for wake-ups by SQS and for Lambda functions. None: no AWS.", alias="AWS_REGION"),
    ] = None
    aws_endpoint_url: Annotated[
        str | None,
        Setting("Endpoint URL that replaces AWS, such as an emulator.", check=value.http_url, alias="AWS_ENDPOINT_URL"),
    ] = None
    worker_metrics: Annotated[
        Address | None,
        Setting("Address at which a worker serves its own metrics, as HOST:PORT. None: not served."),
    ] = None
    log_format: Annotated[Literal["text", "json"], Setting("Log format of servers and workers.")] = "text"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Setting("Lowest level of logged messages.")] = (
        "info"
    )
    keep_finished_s: Annotated[float, Setting("Retention of ended tasks and their history, in seconds.")] = 604800.0
    scheduler_interval_s: Annotated[
        float,
        Setting(
            "Interval of the scan for due schedules, in seconds. Known schedules fire on time.",
            check=value.seconds(0.1, 3600.0), alias="KAGZI_SCHEDULER_INTERVAL_SECS",
        ),
    ] = 5.0  # fmt: skip
    scheduler_batch: Annotated[
        int,
        Setting(
            "Maximum number of schedules that fire in one transaction.",
            check=value.count(), alias="KAGZI_SCHEDULER_BATCH_SIZE",
        ),
    ] = 100  # fmt: skip
    scheduler_fires_max: Annotated[
        int,
        Setting(
            "Maximum number of tasks that schedules submit in one transaction.",
            check=value.count(), alias="KAGZI_SCHEDULER_MAX_WORKFLOWS_PER_TICK",
        ),
    ] = 1000  # fmt: skip

    @property
    def blobs_url(self) -> str | None:
        """URL of the object storage. None for a shared database, where each process would have its own folder."""
        return self.blobs or (self.blobs_folder if self.database_url is None else None)

    @property
    def blobs_folder(self) -> str:
        """Folder of the object storage if all processes that use the database are on this machine."""
        return str(self.data_dir / BLOBS_FOLDER)

    @property
    def api_url(self) -> str:
        """URL of the API for commands."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.http.host, self.http.host)  # noqa: S104
        scheme = "http" if self.http_certificate is None else "https"
        return self.url or f"{scheme}://{Address(host, self.http.port)}"

    def is_open(self, contract: str) -> bool:
        """Whether this contract needs no key here."""
        return contract in value.listed(self.open)
