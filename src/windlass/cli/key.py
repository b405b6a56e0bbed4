"""`windlass keys`: manages API keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.database import idle_engine
from windlass.cli.options import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Unusable, instant, say, show
from windlass.cli.process import run_async
from windlass.errors import Conflict
from windlass.settings import Settings


def create_key(
    name: str,
    *,
    role: Literal["viewer", "submitter", "operator", "admin"] = "submitter",
    everywhere: Annotated[bool, Parameter(show_default=False, help="Valid in all namespaces.")] = False,
    group: Annotated[
        tuple[str, ...], Parameter(show_default=False, help="Group whose datasets the key may read; repeatable.")
    ] = (),
    api: ApiOptions = HERE,
) -> None:
    """Create an API key and print it. It cannot be shown again.

    Parameters
    ----------
    name
        Name of the user or program of the key.
    role
        A viewer reads; a submitter also submits and cancels; an operator also retries and configures queues; an admin
        may do everything.
    """
    space = {} if api.settings.namespace is None else api.space
    order = {"name": name, "role": role, "groups": group, **({"namespace": None} if everywhere else space)}
    made = api.client().post("/keys", order)
    api.show(made, made["secret"])


def bootstrap(
    name: str = "bootstrap",
    *,
    again: Annotated[bool, Parameter(show_default=False)] = False,
    database: DatabaseOptions = NO_DATABASE,
) -> None:
    """Create the first API key directly in the database, with the role admin in all namespaces, and print it. It cannot
    be shown again.

    Parameters
    ----------
    name
        Name of the user of the key.
    again
        Create a key even if admin keys exist, for example when all of them were lost.
    """
    try:
        key = run_async(_bootstrap(database.settings(), name, again))
    except Conflict as error:
        raise Unusable(f"{error.message}: create others with `windlass keys create`, or give --again") from None
    show({"secret": key, "name": name, "role": "admin", "namespace": None}, database.json, lambda: say(key))


async def _bootstrap(settings: Settings, name: str, again: bool) -> str:
    async with idle_engine(settings) as engine:
        return await engine.keys.create_first_key(name, again=again)


def list_keys(*, api: ApiOptions = HERE) -> None:
    """List API keys, newest first. Only the first characters of each key are shown."""
    columns = ("id", "name", "role", "namespace", "begins", "created", "groups", "")
    api.show_items("/keys", api.space, columns, _row, empty="There are no keys.")


def _row(key: dict[str, Any]) -> list[object]:
    return [
        key["id"], key["name"], key["role"], key["namespace"] or "(all)", f"{key['hint']}…",
        instant(key["created_at"]), ", ".join(key["groups"]), "revoked" if key.get("revoked_at") else "",
    ]  # fmt: skip


def revoke_key(
    key_id: Annotated[str, Parameter(help="Id of the key, from `windlass keys list`.")],
    *,
    api: ApiOptions = HERE,
) -> None:
    """Revoke an API key. It is no longer accepted."""
    key = api.client().delete(f"/keys/{key_id}")
    api.show(key, f"The key {key['name']} is revoked.")
