"""Certificates of a wrapper that are replaced while it runs."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contracts.lease.worker.certificates import Authority, Files
from tests.contracts.lease.worker.stand_in import Dispatcher

from windlass.contracts.lease.worker.dispatcher import Claimed, DispatcherUnavailable, TlsFiles, tls_context
from windlass.contracts.lease.worker.dispatcher import Dispatcher as Client

pytestmark = pytest.mark.slow


def put(files: Files, certificate: Path, key: Path) -> None:
    for source, target in ((files.certificate, certificate), (files.key, key)):
        draft = target.with_suffix(".draft")
        shutil.copy(source, draft)
        draft.replace(target)


async def test_certificates_that_were_replaced_hold_from_the_next_connection_on(
    dispatcher: Dispatcher, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "worker.pem", tmp_path / "worker-key.pem"
    (tmp_path / "others").mkdir()
    put(Authority(tmp_path / "others").issue("worker"), certificate, key)
    files = certificate, key, authority.certificate
    client = Client(dispatcher.url, tls_context(*files), threads=1, tls_files=TlsFiles(*files))
    try:
        with pytest.raises(DispatcherUnavailable):
            await client.claim(uuid4(), "w", uuid4())

        put(authority.issue("worker-1"), certificate, key)
        assert isinstance(await client.claim(uuid4(), "w", uuid4()), Claimed)
        key.write_text("half a file")
        with caplog.at_level(logging.WARNING, "windlass.wrapper"):
            assert isinstance(await client.claim(uuid4(), "w", uuid4()), Claimed)
            assert isinstance(await client.claim(uuid4(), "w", uuid4()), Claimed)
        assert [record.message.split(":")[0] for record in caplog.records] == [
            "the replaced certificates cannot be used"
        ]
    finally:
        client.close()
