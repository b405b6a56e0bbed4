"""What the Machines API of Fly.io takes and answers, as JSON Schema: the fields and types that Fly.io publishes in its
own client (superfly/fly-go, `LaunchMachineInput`, `MachineConfig`, `Machine`, `StopMachineInput`). Nothing else is let
through, so that a field that we misspell or make up is found."""

from __future__ import annotations

from typing import Any

TEXT, WHOLE, TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT}
WORDS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
SIGNALS = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM"]


def only(**fields: Any) -> dict[str, Any]:
    required = [name.rstrip("_") for name in fields if name.endswith("_")]
    known = {name.rstrip("_"): kind for name, kind in fields.items()}
    return {"type": "object", "properties": known, "required": required, "additionalProperties": False}


GUEST = only(
    cpu_kind={"enum": ["shared", "performance"]}, cpus={"type": "integer", "minimum": 1},
    memory_mb={"type": "integer", "minimum": 256, "multipleOf": 256}, max_memory_mb=WHOLE, gpus=WHOLE, gpu_kind=TEXT,
    host_dedication_id=TEXT, persist_rootfs={"enum": ["never", "always", "restart"]}, kernel_args=TEXTS,
)  # fmt: skip
INIT = only(exec=TEXTS, entrypoint=TEXTS, cmd=TEXTS, tty=TRUTH, swap_size_mb=WHOLE, kernel_args=TEXTS)
CONFIG = only(
    image_={"type": "string", "minLength": 1}, env=WORDS, init=INIT, guest=GUEST, metadata=WORDS, auto_destroy=TRUTH,
    restart=only(policy={"enum": ["no", "always", "on-failure"]}, max_retries=WHOLE),
    stop_config=only(timeout=TEXT, signal={"enum": SIGNALS}), schedule=TEXT, standbys=TEXTS,
)  # fmt: skip
CREATE = only(
    config_=CONFIG, region=TEXT, name={"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$"}, skip_launch=TRUTH,
    skip_service_registration=TRUTH, skip_secrets=TRUTH, min_secrets_version=WHOLE, lease_ttl=WHOLE,
)  # fmt: skip
STOP = only(signal={"enum": SIGNALS}, timeout={"type": "string", "pattern": "^[0-9]+(s|m|ms)$"})
EXIT = only(
    exit_code=WHOLE, guest_exit_code=WHOLE, guest_signal=WHOLE, oom_killed=TRUTH, requested_stop=TRUTH,
    restarting=TRUTH, signal=WHOLE, exited_at=TEXT,
)  # fmt: skip
EVENT = only(
    type=TEXT, status=TEXT, source=TEXT, timestamp=WHOLE,
    request=only(exit_event=EXIT, MonitorEvent=only(exit_event=EXIT), restart_count=WHOLE),
)  # fmt: skip
MACHINE = only(
    id=TEXT, name=TEXT, state=TEXT, region=TEXT, instance_id=TEXT, private_ip=TEXT, created_at=TEXT, updated_at=TEXT,
    config=CONFIG, events={"type": "array", "items": EVENT},
)  # fmt: skip
