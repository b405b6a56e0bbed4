"""`windlass secrets`: encrypts the secrets in the database."""

from __future__ import annotations

from windlass.cli.database import open_url
from windlass.cli.options import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Unusable, say, show
from windlass.cli.process import run_async
from windlass.engine.secrets import SecretCount
from windlass.serve import seal_secrets
from windlass.settings import Settings


def encrypt(*, database: DatabaseOptions = NO_DATABASE) -> None:
    """Encrypt all signing secrets and token keys with the first key of WINDLASS_SECRET_KEYS.

    Run it after you set the first key, and after you put a new key before the old one on all servers. Then remove the
    old key.
    """
    settings = database.settings()
    if settings.secret_keys is None:
        raise Unusable("WINDLASS_SECRET_KEYS is not set; `openssl rand -base64 32` makes a key")
    before = run_async(_encrypt(settings, settings.secret_keys))
    changed = before.clear + before.older
    show(before, database.json, lambda: say(f"{changed} encrypted, {before.current} already used the first key."))


async def _encrypt(settings: Settings, keys: str) -> SecretCount:
    async with open_url(settings, migrate=False) as url:
        return await seal_secrets(url, keys, pooled=settings.pooled)
