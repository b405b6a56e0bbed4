"""Whether the addresses that a server is to listen on are free, before anything else is started."""

from __future__ import annotations

from contextlib import ExitStack

from windlass.cli.output import Unusable
from windlass.core.error import Invalid
from windlass.settings import Address, Settings


def check_ports(settings: Settings) -> None:
    """Raise Unusable that names every address which cannot be had, each with its flag."""
    from windlass.http.server import bind

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
