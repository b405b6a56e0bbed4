"""Access: roles, API keys, and the namespace that a key is bound to.

A role includes the rights of the roles below it. A key that is bound to no namespace may act in all of them. Groups
say which datasets a key may read.
"""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

import msgspec

from windlass.core.states import Instant
from windlass.core.validation import check_list, check_name, check_names
from windlass.errors import Forbidden, Invalid

GROUPS_MAX = 100


class Role(StrEnum):
    """What the holder of a key may do, from least to most."""

    VIEWER = "viewer"  # sees tasks, queues, workers
    SUBMITTER = "submitter"  # submits, cancels, signals
    OPERATOR = "operator"  # retries, replays, configures and pauses queues, handles dead effects and dead letters
    ADMIN = "admin"  # creates keys, sees secrets


_RANK = {role: rank for rank, role in enumerate(Role)}


class Principal(msgspec.Struct, frozen=True):
    """The caller. `namespace=None` means all namespaces."""

    name: str
    role: Role
    namespace: str | None = None
    groups: tuple[str, ...] = ()

    def may(self, role: Role) -> bool:
        return _RANK[self.role] >= _RANK[role]


class ApiKey(msgspec.Struct, frozen=True):
    """The record of a key, without the key itself. `hint` is its first characters, to recognise it by."""

    id: UUID
    name: str
    role: Role
    namespace: str | None
    hint: str
    created_at: Instant
    revoked_at: Instant | None = None
    groups: tuple[str, ...] = ()


def check_role(principal: Principal, needed: Role) -> None:
    if not principal.may(needed):
        raise Forbidden(f"this needs the role {needed}; this key is a {principal.role}", role=needed)


def check_reach(principal: Principal, namespace: str | None) -> None:
    """Raise Forbidden unless the caller may act in this namespace, or in all of them (None)."""
    if principal.namespace is not None and namespace != principal.namespace:
        where = "all namespaces" if namespace is None else f"the namespace {namespace}"
        raise Forbidden(f"this key is bound to the namespace {principal.namespace}, not to {where}")


def check_grant(name: object, role: object, namespace: object, groups: object = ()) -> None:
    """Raise Invalid naming the first field that cannot be accepted."""
    check_name("name", name)
    if role not in Role.__members__.values():
        raise Invalid(f"{role!r} is not a role", field="role")
    if namespace is not None:
        check_name("namespace", namespace)
    check_names("groups", groups)
    if len(check_list("groups", groups)) > GROUPS_MAX:
        raise Invalid(f"must have at most {GROUPS_MAX} groups", field="groups")
