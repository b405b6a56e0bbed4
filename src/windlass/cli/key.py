"""`windlass keys`: who may ask the API."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from windlass.app import open_database
from windlass.cli.api import HERE, ApiOptions
from windlass.cli.option import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Unusable, instant, print_json, say, show, table
from windlass.cli.process import run_async
from windlass.core.error import Conflict
from windlass.engine.engine import Engine
from windlass.settings import Settings
from windlass.store.store import Store


def create_key(
    name: str,
    *,
    role: Literal["viewer", "submitter", "operator", "admin"] = "submitter",
    everywhere: Annotated[bool, Parameter(show_default=False, help="In all namespaces, instead of one.")] = False,
    api: ApiOptions = HERE,
) -> None:
    """Hand out a key. It is shown once, and kept nowhere.

    Parameters
    ----------
    name
        Who or what will use it.
    role
        A viewer looks; a submitter also submits and cancels; an operator also retries and sets queues; an admin may
        do everything.
    """
    asked = {} if api.settings.namespace is None else api.space
    made = api.client().post("/keys", {"name": name, "role": role, **({"namespace": None} if everywhere else asked)})
    if api.json:
        print_json(made)
    else:
        say(made["secret"])


def bootstrap(
    name: str = "bootstrap",
    *,
    again: Annotated[bool, Parameter(show_default=False)] = False,
    database: DatabaseOptions = NO_DATABASE,
) -> None:
    """Make the first key, an admin's in all namespaces, on the database itself. It is shown once, and kept nowhere.

    Parameters
    ----------
    name
        Who will use it.
    again
        Make one though there are keys of admins, such as when all of them were lost.
    """
    settings = database.settings()
    try:
        key = run_async(_bootstrap(settings, name, again))
    except Conflict as error:
        raise Unusable(f"{error.message}: make others with `windlass keys create`, or say --again") from None
    show({"secret": key, "name": name, "role": "admin", "namespace": None}, database.json, lambda: say(key))


async def _bootstrap(settings: Settings, name: str, again: bool) -> str:
    async with open_database(settings.database_url, data_dir=settings.data_dir) as url:
        engine = Engine(Store(url, pooled=settings.pooled), listen=False)
        try:
            await engine.store.check_schema()
            return await engine.access.create_first_key(name, again=again)
        finally:
            await engine.close()


def list_keys(*, api: ApiOptions = HERE) -> None:
    """List keys, newest first; not the keys themselves, only how they begin."""
    found = list(api.client().items("/keys", api.space, 1000))
    rows = [
        (key["id"], key["name"], key["role"], key["namespace"] or "(all)", f"{key['hint']}…",
         instant(key["created_at"]), "revoked" if key.get("revoked_at") else "")
        for key in found
    ]  # fmt: skip
    columns = ("id", "name", "role", "namespace", "begins", "created", "")
    show(found, api.json, lambda: table(columns, rows, nothing="No keys were handed out."))


def revoke_key(
    key_id: Annotated[str, Parameter(help="The key, by the id that `windlass keys list` shows.")],
    *,
    api: ApiOptions = HERE,
) -> None:
    """Revoke a key: it opens nothing any more."""
    key = api.client().delete(f"/keys/{key_id}")
    show(key, api.json, lambda: say(f"The key {key['name']} is revoked."))
