"""`windlass keys`: who may ask the API."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import instant, print_json, say, show, table


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
