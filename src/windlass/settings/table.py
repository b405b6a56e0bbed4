"""Everything that can be set: one field a setting, with all that there is to know of it beside it.

A new setting is a field here and nothing else; the reference page is made from it. What a setting is for is known to
those who read it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from windlass.core.check import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES
from windlass.settings import value
from windlass.settings.value import Address, Check

BLOBS_FOLDER = "blobs"
CONTRACTS_TO_OPEN = ("registry", "machine")
LAUNCHERS = ("process", "docker", "kubernetes", "fly")


class Setting(NamedTuple):
    """What a setting means. A secret may be mounted as a file and is masked, or shown as far as `shown` lets it be;
    `check` raises Invalid for a value of the right type that cannot be meant; `alias` is a variable of another's making
    that is read where ours is not set."""

    text: str
    secret: bool = False
    shown: Callable[[str], str] | None = None
    check: Check | None = None
    alias: str | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The order is that of the reference page."""

    database_url: Annotated[
        str | None,
        Setting(
            "PostgreSQL URL of the servers and of workers beside the database. None: an embedded one.",
            secret=True, shown=value.without_password, check=value.database_url, alias="DATABASE_URL",
        ),
    ] = None  # fmt: skip
    data_dir: Annotated[Path, Setting("Folder of the embedded PostgreSQL.")] = Path(".windlass")
    blobs: Annotated[
        str | None,
        Setting(
            "Where objects are kept, such as payloads over 2 MiB: file:///FOLDER, s3://BUCKET/PREFIX, gs:// or az://. "
            "The same for all who use one database. None: the folder `blobs` in the data folder, for the embedded "
            "PostgreSQL and `windlass dev`; beside any other database, what is larger is refused.",
            secret=True, shown=value.without_options,
        ),
    ] = None  # fmt: skip
    payload_max_bytes: Annotated[
        int,
        Setting(
            "How many bytes a payload or a result may have, at most. Over 2 MiB it is kept as an object.",
            check=value.count(PAYLOAD_MAX_BYTES, LARGE_MAX_BYTES),
        ),
    ] = 64 * 1024 * 1024
    pooled: Annotated[
        bool, Setting("Whether a transaction-mode pooler stands before the database; it is polled then.")
    ] = False
    http: Annotated[Address, Setting("Where the HTTP API listens, as HOST:PORT.")] = Address("127.0.0.1", 8420)
    http_certificate: Annotated[
        Path | None,
        Setting(
            "PEM file with the certificate (and its chain) of the HTTP API, read again when replaced. None: no TLS."
        ),
    ] = None
    http_key: Annotated[Path | None, Setting("PEM file with the key of that certificate.")] = None
    http_header_bytes: Annotated[
        int,
        Setting("How many bytes the first line and the header of a request may have.", check=value.count(1024, 2**20)),
    ] = 32 * 1024
    http_header_count: Annotated[
        int, Setting("How many header lines a request may have.", check=value.count(10, 10_000))
    ] = 100
    http_request_s: Annotated[
        float,
        Setting(
            "Seconds in which the header of a request must arrive, and its body begin to; each 16 KiB of the body give "
            "it another second.",
            check=value.seconds(0.1, 3600.0),
        ),
    ] = 20.0
    http_connections: Annotated[
        int,
        Setting(
            "How many connections the API, and the internal port, may each have. Fewer if the process may open too few "
            "files: a third of those.",
        ),
    ] = 4096
    http_address_connections: Annotated[
        int,
        Setting(
            "How many of them may come from one address; at most three quarters. The oldest idle one makes room for a "
            "new one.",
        ),
    ] = 1024
    request_memory_bytes: Annotated[
        int,
        Setting(
            "How many bytes of requests are held at the same time, of all callers together. Who finds no room within "
            "20 seconds is refused (503).",
            check=value.count(2**20, 2**40),
        ),
    ] = 128 * 1024 * 1024
    grpc: Annotated[Address, Setting("Where the gRPC server for remote workers listens, as HOST:PORT.")] = Address(
        "127.0.0.1", 50051
    )
    grpc_certificate: Annotated[
        Path | None,
        Setting(
            "PEM file with the certificate (and its chain) of the gRPC server, read again when replaced. None: no TLS."
        ),
    ] = None
    grpc_key: Annotated[Path | None, Setting("PEM file with the key of that certificate.")] = None
    grpc_connections: Annotated[
        int, Setting("How many connections the gRPC server may have; fewer if the process may open too few files.")
    ] = 4096
    grpc_calls: Annotated[
        int, Setting("How many gRPC calls may be open at the same time; a worker that waits has one or more.")
    ] = 10_000
    internal: Annotated[
        Address | None,
        Setting("Where `/internal/*` listens, as HOST:PORT, for callers with a certificate. None: nowhere."),
    ] = None
    internal_certificate: Annotated[
        Path | None, Setting("PEM file with the certificate (and its chain) of the internal port.")
    ] = None
    internal_key: Annotated[Path | None, Setting("PEM file with the key of that certificate.")] = None
    internal_ca: Annotated[
        Path | None, Setting("PEM file with the authorities whose certificates callers of the internal port show.")
    ] = None
    scratch_uri: Annotated[
        str,
        Setting(
            "The place under which tasks of the lease contract may leave batches, each in folders of its own.",
            check=value.plain_uri,
        ),
    ] = "s3://windlass-scratch"
    open: Annotated[
        str | None,
        Setting(
            "Contracts that need no key, with commas between: registry, machine. Only on loopback; to try things out.",
            check=value.names_of(*CONTRACTS_TO_OPEN),
        ),
    ] = None
    poll_timeout_s: Annotated[
        float,
        Setting(
            "Seconds for which a long poll of the registry contract waits.",
            check=value.seconds(most=3600.0), alias="KAGZI_POLL_TIMEOUT_SECS",
        ),
    ] = 60.0  # fmt: skip
    worker_heartbeat_s: Annotated[
        float,
        Setting("How often workers of the registry contract are to be heard of.", check=value.seconds(least=1.0)),
    ] = 10.0
    worker_stale_s: Annotated[
        float,
        Setting(
            "Seconds of silence after which such a worker is gone.",
            check=value.seconds(least=1.0), alias="KAGZI_WORKER_STALE_THRESHOLD_SECS",
        ),
    ] = 30.0  # fmt: skip
    drain_timeout_s: Annotated[
        float,
        Setting("Seconds after which what a draining worker still runs is taken from it, stdio programs included."),
    ] = 300.0
    url: Annotated[
        str | None,
        Setting(
            "The HTTP API that commands talk to. None: the one that `http` names, on this machine.",
            check=value.http_url,
        ),
    ] = None
    server: Annotated[
        str | None,
        Setting(
            "The gRPC server that apps and workers far from the database use, as http://HOST:PORT. None: a database."
        ),
    ] = None
    api_key: Annotated[
        str | None, Setting("The key that commands show to the API; `windlass dev` accepts it.", secret=True)
    ] = None
    namespace: Annotated[
        str | None,
        Setting("The namespace that commands look at. None: the one of the key.", check=value.name),
    ] = None
    metrics: Annotated[bool, Setting("Whether servers count what happens, for /metrics.")] = True
    callback_url: Annotated[
        str | None,
        Setting(
            "Where workers that are pushed to call back, as they see it. None: where the API listens.",
            check=value.http_url,
        ),
    ] = None
    stdio: Annotated[
        bool, Setting("Whether this server runs the programs of queues with delivery stdio; `windlass dev` does.")
    ] = False
    launchers: Annotated[
        str | None,
        Setting(f"What machines are started with: {', '.join(LAUNCHERS)}.", check=value.names_of(*LAUNCHERS)),
    ] = None
    machine_sweep_s: Annotated[
        float,
        Setting("How often machines are held against their tasks, in seconds.", check=value.seconds(0.1, 3600.0)),
    ] = 5.0
    mods_api_url: Annotated[
        str | None, Setting("Where MODS exports get entities: GET /entities/{pi}.", check=value.http_url)
    ] = None
    mods_gateway_url: Annotated[
        str | None, Setting("Where MODS exports get their parts: GET /ipfs/{cid}.", check=value.http_url)
    ] = None
    push_targets: Annotated[
        str,
        Setting(
            "Where tasks may be pushed to, with commas between: public, private, loopback, networks such as "
            "10.0.0.0/8, names of hosts such as worker.internal or *.svc.cluster.local.",
            check=value.targets,
        ),
    ] = "public"
    push_loopback: Annotated[bool, Setting("Whether loopback is among `push_targets`; `windlass dev` says so.")] = False
    signing_secret: Annotated[
        str | None,
        Setting(
            "What pushes to workers of this program are signed with; two, with a space, while it changes.", secret=True
        ),
    ] = None
    secret_keys: Annotated[
        str | None,
        Setting(
            "Keys that signing secrets and the keys of workers' tokens are encrypted with in the database: 32 bytes in "
            "base64 each, with spaces between. The first encrypts, all decrypt. The same for all servers of a "
            "database. None: they are kept in the clear.",
            secret=True,
        ),
    ] = None
    google_token: Annotated[
        str | None,
        Setting("Access token for Google Cloud Tasks. None: the one of the machine, from Google.", secret=True),
    ] = None
    nats_url: Annotated[
        str | None,
        Setting(
            "NATS server for wake-ups, such as nats://HOST:4222; several with commas. None: no NATS.",
            secret=True, check=value.nats_urls,
        ),
    ] = None  # fmt: skip
    nats_credentials: Annotated[Path | None, Setting("File with the credentials for NATS.")] = None
    aws_region: Annotated[
        str | None,
        Setting("Region of AWS, for wake-ups by SQS and for functions of Lambda. None: no AWS.", alias="AWS_REGION"),
    ] = None
    aws_endpoint_url: Annotated[
        str | None,
        Setting("Where AWS is, if it is not the real one.", check=value.http_url, alias="AWS_ENDPOINT_URL"),
    ] = None
    worker_metrics: Annotated[
        Address | None,
        Setting("Where a worker beside the database serves its own metrics, as HOST:PORT. None: nowhere."),
    ] = None
    log_format: Annotated[Literal["text", "json"], Setting("How servers and workers write their log.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Setting("What is worth a line in the log, at least.")
    ] = "info"
    keep_finished_s: Annotated[float, Setting("Seconds for which ended tasks and their history are kept.")] = 604800.0
    scheduler_interval_s: Annotated[
        float,
        Setting(
            "Seconds between two looks for schedules that are due; known ones fire at their time.",
            check=value.seconds(0.1, 3600.0), alias="KAGZI_SCHEDULER_INTERVAL_SECS",
        ),
    ] = 5.0  # fmt: skip
    scheduler_batch: Annotated[
        int,
        Setting(
            "How many schedules fire in one transaction, at most.",
            check=value.count(), alias="KAGZI_SCHEDULER_BATCH_SIZE",
        ),
    ] = 100  # fmt: skip
    scheduler_fires_max: Annotated[
        int,
        Setting(
            "How many tasks they submit in one transaction, at most.",
            check=value.count(), alias="KAGZI_SCHEDULER_MAX_WORKFLOWS_PER_TICK",
        ),
    ] = 1000  # fmt: skip

    @property
    def blobs_url(self) -> str | None:
        """Where objects are kept. None beside a database that others may use: each would have a folder of its own."""
        return self.blobs or (self.blobs_folder if self.database_url is None else None)

    @property
    def blobs_folder(self) -> str:
        """Where objects are kept if all who use the database are on this machine."""
        return str(self.data_dir / BLOBS_FOLDER)

    @property
    def api_url(self) -> str:
        """Where commands find the API."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.http.host, self.http.host)  # noqa: S104
        scheme = "http" if self.http_certificate is None else "https"
        return self.url or f"{scheme}://{Address(host, self.http.port)}"

    def is_open(self, contract: str) -> bool:
        """Whether this contract needs no key here."""
        return contract in value.listed(self.open)
