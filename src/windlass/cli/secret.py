"""`windlass secrets`: what is kept in the database that nobody else should read."""

from __future__ import annotations

from windlass.app import open_embedded, seal_secrets
from windlass.cli.option import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Unusable, say, show
from windlass.cli.process import run_async
from windlass.engine.secret import SecretCount
from windlass.settings import Settings


def encrypt(*, database: DatabaseOptions = NO_DATABASE) -> None:
    """Encrypt all signing secrets and keys of tokens with the first of WINDLASS_SECRET_KEYS.

    Run it when you have set the first key, and when you have put a new key before the old one on all servers. Then
    the old one can be taken away.
    """
    settings = database.settings()
    if settings.secret_keys is None:
        raise Unusable("give the keys by WINDLASS_SECRET_KEYS; `openssl rand -base64 32` makes one")
    before = run_async(_encrypt(settings, settings.secret_keys))
    anew = before.clear + before.older
    show(before, database.json, lambda: say(f"{anew} encrypted anew, {before.current} had the first key already."))


async def _encrypt(settings: Settings, keys: str) -> SecretCount:
    if settings.database_url is not None:
        return await seal_secrets(settings.database_url, keys, pooled=settings.pooled)
    async with open_embedded(settings.data_dir) as url:
        return await seal_secrets(url, keys)
