"""Checks that the addresses of the servers are free, before anything starts."""

from __future__ import annotations

from contextlib import ExitStack

from windlass.cli.output import Unusable
from windlass.errors import Invalid
from windlass.settings import Address, Settings


def check_ports(settings: Settings) -> None:
    """Raises `Unusable` that names every address in use, with its flag."""
    from windlass.net.server.server import bind

    wrong: list[str] = []
    flags: dict[Address, str] = {}
    with ExitStack() as stack:
        for name in ("http", "grpc", "internal"):
            address = getattr(settings, name)
            if address is None or not address.port:
                continue
            if address in flags:
                wrong.append(f"--{name} cannot listen on {address}: it is the address of --{flags[address]}")
                continue
            flags[address] = name
            try:
                stack.enter_context(bind(address.host, address.port))
            except Invalid as error:
                why = error.message.removeprefix("http: ").removesuffix("; choose another address")
                wrong.append(f"--{name} {why}")
    if wrong:
        raise Unusable(f"{'; '.join(wrong)}. Choose other addresses, or stop what listens there")
