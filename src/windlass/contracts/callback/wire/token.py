"""Task tokens: JWT with HS256, for one attempt of one task. Made for each push, never stored.

The signature of a token is verified once and cached. Its times are not checked here, since only the database's clock
counts. During a rotation there are two keys: the first signs, both verify.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import jwt

from windlass.contracts.callback.rules import Scope
from windlass.errors import Unauthenticated
from windlass.net.ids import parse_id, ulid

ISSUER, AUDIENCE, ALGORITHM = "windlass", "windlass.callback", "HS256"
CLAIMS = ["taskId", "tenantId", "workspaceId", "runId", "attempt", "exp", "nbf", "iat", "iss", "aud"]
TOKEN_MAX = 4096
READ_KEPT = 20_000
_INSTANT_MAX = 253_402_300_799  # the end of the year 9999


class UnknownKey(Unauthenticated):
    """The token was signed with a key that is not known here."""


class Tokens:
    """Makes and verifies tokens with the current keys. The first key signs."""

    def __init__(self, keys: Sequence[tuple[UUID, bytes]]) -> None:
        assert keys, "without a key nothing can be signed"
        self._signs = str(keys[0][0]), keys[0][1]
        self._opens = {str(id_): secret for id_, secret in keys}
        self._read: dict[str, Scope] = {}

    def make(self, scope: Scope) -> str:
        """A token for this scope. Its times are whole seconds."""
        claims = {
            "iss": ISSUER, "aud": AUDIENCE,
            "taskId": ulid("task", scope.task_id), "runId": ulid("run", scope.run_id),
            "tenantId": scope.tenant, "workspaceId": scope.workspace, "attempt": scope.attempt,
            "iat": int(scope.not_before.timestamp()), "nbf": int(scope.not_before.timestamp()),
            "exp": int(scope.expires_at.timestamp()),
        }  # fmt: skip
        return jwt.encode(claims, self._signs[1], ALGORITHM, headers={"kid": self._signs[0]})

    def known(self, token: str) -> Scope | None:
        """The scope of a token that was verified before, or None."""
        return self._read.get(token)

    def read(self, token: str) -> Scope:
        """The scope of a token. Raises Unauthenticated if we did not sign it."""
        known = self._read.get(token)
        if known is not None:
            return known
        scope = self._verified(token)
        if len(self._read) >= READ_KEPT:
            self._read.clear()
        self._read[token] = scope
        return scope

    def _verified(self, token: str) -> Scope:
        if len(token) > TOKEN_MAX:
            raise Unauthenticated("the token is too long")
        try:
            key_id = jwt.get_unverified_header(token).get("kid", "")
            if key_id not in self._opens:
                raise UnknownKey
            claims = jwt.decode(
                token, self._opens[key_id], [ALGORITHM], audience=AUDIENCE, issuer=ISSUER,
                options={"require": CLAIMS, "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )  # fmt: skip
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise Unauthenticated(f"the token is not valid: {type(error).__name__}") from None
        return _scope(claims)


def _scope(claims: dict[str, Any]) -> Scope:
    task_id, run_id = (parse_id(name, str(claims[f"{name}Id"])) for name in ("task", "run"))
    attempt, begins, ends = (claims[name] for name in ("attempt", "nbf", "exp"))
    whole = all(type(number) is int for number in (attempt, begins, ends))
    if task_id is None or run_id is None or not whole or not 0 <= begins <= ends <= _INSTANT_MAX:
        raise Unauthenticated("the claims of the token are not valid")
    return Scope(
        task_id, attempt=attempt, tenant=str(claims["tenantId"]), workspace=str(claims["workspaceId"]), run_id=run_id,
        not_before=datetime.fromtimestamp(begins, UTC), expires_at=datetime.fromtimestamp(ends, UTC),
    )  # fmt: skip
