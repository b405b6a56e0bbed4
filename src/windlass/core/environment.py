"""The environment variables that programs started by this process inherit.

All others may be secret: the address of the database with its password, keys, tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.errors import Invalid

HANDED_ON = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY",
    "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
# For programs that run as our own user.
OF_THE_USER = ("HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CACHE_HOME", "WINDLASS_STDIO_LINE_MAX")
OF_INSTALLERS = ("PIP_", "UV_")  # prefixes: which index, which certificates


def handed_on(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that every program gets."""
    return {name: variables[name] for name in HANDED_ON if name in variables}


def program_variables(variables: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """The variables of a program that runs as our own user: with those that its queue names as secrets. Raises Invalid
    if one of these is not set."""
    missing = [name for name in secrets if name not in variables]
    if missing:
        raise Invalid(f"this server has no variable {missing[0]}", field="delivery.secrets")
    names = (*HANDED_ON, *OF_THE_USER, *secrets)
    return {name: variables[name] for name in names if name in variables}


def installer_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of uv or pip, and of the programs that a package runs while it is built."""
    own = {name: value for name, value in variables.items() if name.startswith(OF_INSTALLERS)}
    return {**program_variables(variables), **own}
