"""API keys: handed out, listed, revoked. The key itself is told once, when it is made."""

from __future__ import annotations

from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from windlass.core.access import ApiKey, Role, check_reach
from windlass.http import cursor
from windlass.http.form import Listed, Name, Nothing, Paged
from windlass.http.route import Call, Table

table = Table("keys")


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """`namespace` null reaches all of them, and only such a key may make one. Left out, it is the caller's own, or
    `default` for a caller that reaches all."""

    name: Name
    role: Role
    namespace: Name | UnsetType | None = UNSET


class MadeKey(Struct, frozen=True):
    """`secret` is the key. It is not kept, and never told again."""

    key: ApiKey
    secret: str


@table.add("POST", "/api/v1/keys", Role.ADMIN, status=201)
async def create_key(call: Call[None, NewKey]) -> MadeKey:
    """Hand out a key, bound to a role and a namespace."""
    body = call.body
    namespace = call.namespace(None) if isinstance(body.namespace, UnsetType) else body.namespace
    check_reach(call.principal, namespace)
    key, secret = await call.engine.access.create_key(name=body.name, role=body.role, namespace=namespace)
    return MadeKey(key, secret)


@table.add("GET", "/api/v1/keys", Role.ADMIN)
async def list_keys(call: Call[Paged, None]) -> Listed[ApiKey]:
    """Keys, newest first; those of one namespace, or all that this key reaches."""
    query = call.query
    namespace = call.principal.namespace if query.namespace is None else call.namespace(query.namespace)
    found = await call.engine.access.list_keys(namespace, after=cursor.to_position(query.after), limit=query.limit + 1)
    page, more = cursor.page_of(found, query.limit, lambda key: (key.created_at, key.id))
    return Listed(page, more)


@table.add("DELETE", "/api/v1/keys/{key_id}", Role.ADMIN)
async def revoke_key(call: Call[None, None]) -> ApiKey:
    """Revoke a key: it opens nothing any more."""
    key = await call.engine.access.get_key(call.id("key_id"))
    check_reach(call.principal, key.namespace)
    return await call.engine.access.revoke_key(key.id)


class TokenKey(Struct, frozen=True):
    """The key that signs the tokens of workers from now on. Nobody is ever told the key itself."""

    key_id: UUID


@table.add("POST", "/api/v1/token-key/rotate", Role.ADMIN)
async def rotate_token_key(call: Call[None, Nothing]) -> TokenKey:
    """Sign tokens of workers with a new key; those of the one before stay good until they run out. For an admin of all
    namespaces: all share the key."""
    check_reach(call.principal, None)
    return TokenKey(await call.engine.callbacks.rotate_token_key())
