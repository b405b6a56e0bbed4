"""Which addresses a server may call for its users: public ones by default, and those that `push_targets` allows.

A server can reach more than the user who configures a queue: its own machine, its network, and the metadata services of
clouds, which give secrets to any caller on the machine. Metadata services are never called.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import msgspec

from windlass.errors import Forbidden, Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PUBLIC, PRIVATE, LOOPBACK = "public", "private", "loopback"
WORDS = (PUBLIC, PRIVATE, LOOPBACK)


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


# Names and addresses of the metadata services of clouds.
METADATA_NAMES = (
    ".metadata", ".metadata.google.internal", ".metadata.goog", ".instance-data", ".instance-data.ec2.internal",
)  # fmt: skip
METADATA = _networks(
    "169.254.0.0/16", "fe80::/10", "168.63.129.16/32", "192.0.0.192/32", "100.100.100.200/32", "fd00:ec2::/32",
    "fd20:ce::/32",
)  # fmt: skip
UNUSABLE = _networks("0.0.0.0/8", "::/128", "224.0.0.0/4", "ff00::/8", "255.255.255.255/32")
# IPv6 addresses that lead to the IPv4 address in their last 32 bits.
AT_THE_END = _networks("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")
LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
ISATAP = (0x00005EFE, 0x02005EFE)


class Targets(msgspec.Struct, frozen=True):
    """An allow list: kinds of addresses, networks, and host names, which may have any address. `*.NAME` stands for all
    names below NAME."""

    kinds: frozenset[str] = frozenset({PUBLIC})
    networks: tuple[Network, ...] = ()
    names: tuple[str, ...] = ()

    def check_name(self, host: str) -> None:
        """Raise Forbidden for the name of a metadata service, whether or not it has an address here."""
        if f".{plain(host)}".endswith(METADATA_NAMES):
            raise Forbidden(f"{host} is a service of the machine itself")

    def check(self, host: str, address: str) -> None:
        """Raise Forbidden for an address that may not be called under this name."""
        self.check_name(host)
        for ip in reached(ipaddress.ip_address(address.partition("%")[0])):
            self._check(host, ip)

    def _check(self, host: str, ip: Address) -> None:
        if any(ip in network for network in METADATA):
            raise Forbidden(f"{host} ({ip}) is a service of the machine itself")
        if any(ip in network for network in UNUSABLE):
            raise Forbidden(f"{host} ({ip}) is not the address of a server")
        kind, name = kind_of(ip), plain(host)
        if kind in self.kinds or any(ip in network for network in self.networks):
            return
        if any(name.endswith(one[1:]) if one.startswith("*.") else name == one for one in self.names):
            return
        place = {LOOPBACK: "this machine itself", PRIVATE: "in a private network", PUBLIC: "a public address"}[kind]
        raise Forbidden(f"{host} ({ip}) is {place}: allow it with push_targets, by {kind}, its network or its name")


def read_targets(text: str, *, loopback: bool = False) -> Targets:
    """Parse a list with commas: public, private, loopback, networks such as 10.0.0.0/8, host names. Raises Invalid."""
    kinds, networks, names = {LOOPBACK} if loopback else set(), [], []
    for part in filter(None, map(str.strip, text.split(","))):
        if part in WORDS:
            kinds.add(part)
        elif "/" in part or ":" in part or part.replace(".", "").isdigit():
            try:
                networks.append(ipaddress.ip_network(part))
            except ValueError:
                raise Invalid(f"{part!r} is not a network such as 10.0.0.0/8", field="push_targets") from None
        else:
            words = plain(part).removeprefix("*.").split(".")
            if not all(word and word.replace("-", "").replace("_", "").isalnum() for word in words):
                kinds_of_targets = f"one of {', '.join(WORDS)}, a network or a host name"
                raise Invalid(f"{part!r} is not {kinds_of_targets}", field="push_targets")
            names.append(plain(part))
    return Targets(frozenset(kinds), tuple(networks), tuple(names))


def plain(host: str) -> str:
    return host.lower().rstrip(".")


def kind_of(ip: Address) -> str:
    if ip.is_loopback:
        return LOOPBACK
    of_a_site = isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local
    return PUBLIC if ip.is_global and not of_a_site else PRIVATE


def reached(ip: Address) -> Iterator[Address]:
    """The addresses that an address may lead to: itself, or the IPv4 address that it contains. If the position of that
    depends on the network, all positions count."""
    if isinstance(ip, ipaddress.IPv4Address):
        yield ip
        return
    number = int(ip)
    if ip.is_loopback or ip.is_unspecified:
        yield ip
    elif any(ip in network for network in AT_THE_END):
        yield _last(number)
    elif ip.sixtofour is not None:
        yield ip.sixtofour
    elif ip.teredo is not None:
        yield from ip.teredo
    elif ip in LOCAL_NAT64:
        yield ipaddress.IPv4Address("10.0.0.0")  # the translator is in the private network
        yield from (found for found in _by_prefix(number) if int(found) >> 24)
    else:
        yield ip
        if number >> 32 & 0xFFFFFFFF in ISATAP:
            yield _last(number)


def _last(number: int) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(number & 0xFFFFFFFF)


def _by_prefix(number: int) -> Iterator[ipaddress.IPv4Address]:
    """Where RFC 6052 puts the IPv4 address for prefixes of 48, 56, 64 and 96 bits; bits 64 to 71 are left out."""
    joined = (number >> 64) << 56 | number & (1 << 56) - 1
    for length in (48, 56, 64):
        yield ipaddress.IPv4Address(joined >> (120 - length - 32) & 0xFFFFFFFF)
    yield _last(number)
