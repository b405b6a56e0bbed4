"""API keys: create, list, revoke. The secret is shown once, when the key is created."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from windlass.api.framework import cursor
from windlass.api.framework.forms import Listed, Name, Nothing, Paged
from windlass.api.framework.route import Call, Table
from windlass.core.access import GROUPS_MAX, ApiKey, Role

table = Table("keys")


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to create. With `namespace` null it reaches all namespaces; only a key that reaches all may create it. By
    default the namespace is that of the caller's key, or `default` if that key reaches all. The key may read the
    datasets whose `read_roles` name one of its groups."""

    name: Name
    role: Role
    namespace: Name | UnsetType | None = UNSET
    groups: Annotated[list[Name], Meta(max_length=GROUPS_MAX)] = []


class MadeKey(Struct, frozen=True):
    """The new key. `secret` is the key itself; it is not stored, and cannot be shown again."""

    key: ApiKey
    secret: str


@table.add("POST", "/api/v1/keys", Role.ADMIN, status=201)
async def create_key(call: Call[None, NewKey]) -> MadeKey:
    """Create a key with a role, for one namespace or for all."""
    body = call.body
    namespace = call.namespace(None) if isinstance(body.namespace, UnsetType) else body.namespace
    call.reach(namespace)
    key, secret = await call.engine.keys.create_key(
        name=body.name, role=body.role, namespace=namespace, groups=body.groups
    )
    return MadeKey(key, secret)


@table.add("GET", "/api/v1/keys", Role.ADMIN)
async def list_keys(call: Call[Paged, None]) -> Listed[ApiKey]:
    """List keys, newest first: those of one namespace, or all that this key reaches."""
    query = call.query
    namespace = call.principal.namespace if query.namespace is None else call.namespace(query.namespace)
    found = await call.engine.keys.list_keys(namespace, after=cursor.to_position(query.after), limit=query.limit + 1)
    page, more = cursor.page_of(found, query.limit, lambda key: (key.created_at, key.id))
    return Listed(page, more)


@table.add("DELETE", "/api/v1/keys/{key_id}", Role.ADMIN)
async def revoke_key(call: Call[None, None]) -> ApiKey:
    """Revoke a key. Requests with it are refused from now on."""
    key = await call.engine.keys.get_key(call.id("key_id"))
    call.reach(key.namespace)
    return await call.engine.keys.revoke_key(key.id)


class TokenKey(Struct, frozen=True):
    """The id of the key that now signs the tokens of workers. The key itself is never shown."""

    key_id: UUID


@table.add("POST", "/api/v1/token-key/rotate", Role.ADMIN)
async def rotate_token_key(call: Call[None, Nothing]) -> TokenKey:
    """Rotate the key that signs the tokens of workers. Tokens of the old key stay valid until they expire. Requires an
    admin key for all namespaces, because they share the signing key."""
    call.reach(None)
    return TokenKey(await call.engine.parts.token_keys.rotate())
