"""Which of a process's own variables the programs that it starts for others may see.

Everything else may be secret: the address of the database with its password, keys, tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.errors import Invalid

HANDED_ON = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY",
    "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
# For those that run as our own user.
OF_THE_USER = ("HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CACHE_HOME", "WINDLASS_STDIO_LINE_MAX")
OF_INSTALLERS = ("PIP_", "UV_")  # how these begin: which index, which certificates


def handed_on(variables: Mapping[str, str]) -> dict[str, str]:
    """What anybody may have."""
    return {name: variables[name] for name in HANDED_ON if name in variables}


def program_variables(variables: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """What a program gets that runs as our own user: the ordinary ones, and those that its queue names as secrets.
    Raises Invalid where one of these is not there."""
    named = {name: variables[name] for name in secrets if name in variables}
    missing = [name for name in secrets if name not in named]
    if missing:
        raise Invalid(f"this server has no variable {missing[0]}", field="delivery.secrets")
    of_the_user = {name: variables[name] for name in OF_THE_USER if name in variables}
    return {**handed_on(variables), **of_the_user, **named}


def installer_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """What uv or pip gets, and with it whatever a package runs while it is built."""
    own = {name: value for name, value in variables.items() if name.startswith(OF_INSTALLERS)}
    return {**program_variables(variables), **own}
