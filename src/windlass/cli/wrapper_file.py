"""How `windlass wrapper` finds a `windlass dev` in the same folder: a file in its data folder. Needs only the packages
of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windlass import settings
from windlass.contracts.lease.worker.command import main
from windlass.errors import Invalid
from windlass.settings import Settings

RELOAD = "--reload"


def wrapper_file(known: Settings) -> Path:
    """Where `windlass dev` writes how a wrapper on this machine reaches it."""
    return known.data_dir / "wrapper.toml"


def start_wrapper(arguments: Sequence[str]) -> None:
    """Runs a wrapper until a signal stops it. Settings that the arguments leave open are those of `windlass dev`."""
    if RELOAD in arguments:
        from windlass.cli.reload import run_with_reload

        run_with_reload()
        return
    try:
        defaults = wrapper_file(settings.load({}).settings)
    except Invalid:  # a wrong setting of a server is no matter of a wrapper
        defaults = None
    main(arguments, defaults)
