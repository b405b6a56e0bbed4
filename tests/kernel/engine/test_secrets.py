"""Secrets in the database: sealed under a key of the settings, opened by all who have it, sealed anew."""

from __future__ import annotations

import base64
import os

import asyncpg
import pytest

from windlass import Engine
from windlass.contracts.callback.delivery import Push
from windlass.core.queue import QueueConfig
from windlass.engine.cipher import Keyring, read_keys
from windlass.engine.read.doctor import Level
from windlass.engine.secrets import SecretCount, examine_secrets
from windlass.errors import Invalid, Unavailable
from windlass.store.store import Store

OLD, NEW = os.urandom(32), os.urandom(32)


def engine_with(database: str, *keys: bytes) -> Engine:
    return Engine(Store(database), listen=False, poll_s=3600.0, cipher=Keyring(keys) if keys else None)


async def set_up(engine: Engine, queue: str = "mail") -> list[str]:
    delivery = Push(url="https://example.com/push")
    view = await engine.queues.put(queue, delivery=delivery, limits=QueueConfig())
    return engine.parts.secrets.signing_secrets(view.settings, "default", queue)


async def secrets_of(engine: Engine, queue: str = "mail") -> list[str]:
    view = await engine.queues.get(queue)
    return engine.parts.secrets.signing_secrets(view.settings, "default", queue)


async def everything(other_connection: asyncpg.Connection) -> str:
    """What whoever can read the database reads."""
    rows = await other_connection.fetch(
        "select q::text from windlass.queue q union all select k::text from windlass.token_key k"
    )
    return "\n".join(row[0] for row in rows)


async def test_nothing_that_signs_can_be_read_in_the_database(
    database: str, other_connection: asyncpg.Connection
) -> None:
    engine = engine_with(database, OLD)
    first = await set_up(engine)
    await engine.queues.rotate_secret("mail")
    both, keys = await secrets_of(engine), await engine.parts.token_keys.all()
    await engine.parts.token_keys.rotate()
    keys += await engine.parts.token_keys.all()

    assert both[1] == first[0]
    assert all(secret.startswith("whsec_") for secret in both)
    kept = await everything(other_connection)
    assert len(kept) > 200
    for secret in both:
        assert secret.removeprefix("whsec_") not in kept
    for _, key in keys:
        assert len(key) == 32
        assert key.hex() not in kept
    await engine.close()


async def test_keys_are_replaced_without_a_moment_in_which_nothing_works(
    database: str, other_connection: asyncpg.Connection
) -> None:
    plain = engine_with(database)
    secret, token_keys = await set_up(plain), await plain.parts.token_keys.all()
    assert await plain.parts.secrets.count() == SecretCount(clear=2)

    async def reads(*keys: bytes) -> bool:
        engine = engine_with(database, *keys)
        try:
            return await secrets_of(engine) == secret and await engine.parts.token_keys.all() == token_keys
        except Unavailable:
            return False
        finally:
            await engine.close()

    old = engine_with(database, OLD)
    assert await reads(OLD)
    assert await old.parts.secrets.seal_all() == SecretCount(clear=2)
    assert [await reads(OLD), await reads(), await reads(NEW), await reads(NEW, OLD)] == [True, False, False, True]
    both = engine_with(database, NEW, OLD)
    assert await both.parts.secrets.count() == SecretCount(older=2)
    assert await both.parts.secrets.seal_all() == SecretCount(older=2)
    assert [await reads(NEW), await reads(OLD)] == [True, False]
    with pytest.raises(Unavailable, match="WINDLASS_SECRET_KEYS"):
        await old.parts.secrets.seal_all()
    assert await old.parts.secrets.count() == SecretCount(unreadable=2)
    assert await plain.parts.secrets.count() == SecretCount(unreadable=2)
    for engine in (plain, old, both):
        await engine.close()


async def test_a_secret_that_was_copied_to_another_queue_opens_nothing(
    database: str, other_connection: asyncpg.Connection
) -> None:
    engine = engine_with(database, OLD)
    await set_up(engine, "mail")
    await set_up(engine, "other")
    await other_connection.execute(
        "update windlass.queue q set signing_secret = m.signing_secret from windlass.queue m "
        "where m.name = 'mail' and q.name = 'other'"
    )
    with pytest.raises(Unavailable, match="was modified"):
        await secrets_of(engine, "other")
    assert await secrets_of(engine, "mail")
    await engine.close()


def test_keys_are_32_bytes_in_base64() -> None:
    standard, url_safe = base64.b64encode(OLD).decode(), base64.urlsafe_b64encode(NEW).decode().rstrip("=")
    assert read_keys(f"{standard}, {url_safe}\n") == [OLD, NEW]
    for wrong in ("", " ", "abc", standard + "A", base64.b64encode(OLD[:16]).decode(), "ä" * 44, f"{standard} x"):
        with pytest.raises(Invalid, match="secret_keys"):
            read_keys(wrong)


@pytest.mark.parametrize(
    ("count", "encrypted", "level", "advice"),
    [
        (SecretCount(), False, Level.OK, ""),
        (SecretCount(current=3), True, Level.OK, ""),
        (SecretCount(clear=1), False, Level.NOTE, "openssl rand"),
        (SecretCount(clear=1, current=2), True, Level.NOTE, "windlass secrets encrypt"),
        (SecretCount(older=1), True, Level.NOTE, "windlass secrets encrypt"),
        (SecretCount(unreadable=1, clear=3), True, Level.WRONG, "as the servers have it"),
    ],
)
def test_doctor_says_how_secrets_are_kept(count: SecretCount, encrypted: bool, level: Level, advice: str) -> None:
    finding = examine_secrets(count, encrypted=encrypted)
    assert finding.level is level
    assert advice in finding.advice
