"""What `windlass doctor` says of certificates and of carriers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.contracts.lease.world import TlsFiles

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.tls.doctor import examine_certificates
from windlass.contracts.lease.wakeups.carriers.options import NO_CARRIERS, CarrierOptions
from windlass.contracts.lease.wakeups.doctor import examine_carriers
from windlass.engine.read.doctor import Level

pytestmark = pytest.mark.slow


def levels(certificate: Path | None, key: Path | None, authority: Path | None, days: float = 0.0) -> list[str]:
    found = examine_certificates(certificate, key, authority, datetime.now(UTC) + timedelta(days=days))
    assert [finding for finding in found if finding.level is not Level.OK and not finding.advice] == []
    return [str(finding.level) for finding in found]


def test_certificates_that_are_good_are_so_until_they_run_out(tls_files: TlsFiles) -> None:
    server = tls_files.server
    assert levels(server.certificate, server.key, tls_files.authority, -0.001) == ["note", "note", "ok"]  # within days
    assert levels(server.certificate, server.key, tls_files.authority, 6) == ["wrong", "note"]
    assert levels(server.certificate, server.key, tls_files.authority, 11) == ["wrong", "wrong"]
    assert levels(server.certificate, server.key, tls_files.authority, -3) == ["wrong", "wrong"]


def test_what_is_missing_or_does_not_belong_together_is_found(tls_files: TlsFiles, tmp_path: Path) -> None:
    server = tls_files.server
    assert levels(None, None, None) == ["wrong", "wrong", "wrong"]
    assert levels(tmp_path / "none", server.key, tls_files.authority) == ["wrong", "note"]
    assert levels(server.key, server.key, tls_files.authority) == ["wrong", "note"]
    assert levels(server.certificate, tls_files.client.key, tls_files.authority) == ["note", "note", "wrong"]
    assert levels(server.certificate, tmp_path / "none", tls_files.authority) == ["note", "note", "wrong"]


def test_a_key_that_others_can_read_is_noted(tls_files: TlsFiles, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(tls_files.server.key.read_bytes())
    key.chmod(0o644)
    assert levels(tls_files.server.certificate, key, tls_files.authority) == ["note", "note", "note"]


async def test_carriers_that_answer_are_well(nats_port: int, aws_port: int) -> None:
    options = CarrierOptions(
        nats_url=f"nats://127.0.0.1:{nats_port}",
        aws_region="eu-west-1",
        aws_endpoint_url=f"http://127.0.0.1:{aws_port}",
    )
    found = await examine_carriers([Wakeup(), Wakeup(carrier="nats"), Wakeup(carrier="sqs")], 0, options)
    assert [finding.level for finding in found] == [Level.OK] * 3


@pytest.mark.parametrize("carrier", ["nats", "sqs"])
async def test_a_carrier_that_is_not_set_or_does_not_answer_is_wrong(
    carrier: str, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.contracts.lease.wakeups.carriers.nats.CONNECT_S", 0.5)
    nobody = CarrierOptions(
        nats_url=f"nats://127.0.0.1:{unused_tcp_port}", aws_region="eu-west-1",
        aws_endpoint_url=f"http://127.0.0.1:{unused_tcp_port}",
    )  # fmt: skip
    for options in (NO_CARRIERS, nobody):
        [finding] = await examine_carriers([Wakeup(carrier=carrier)], 0, options)  # type: ignore[arg-type]
        assert (finding.name, finding.level) == ("carrier", Level.WRONG)
        assert "set WINDLASS_" in finding.advice


async def test_letters_that_nobody_looked_at_are_noted() -> None:
    [finding] = await examine_carriers([], 3, NO_CARRIERS)
    assert (finding.name, finding.level, finding.advice) == ("letters", Level.NOTE, "windlass dead-letters list")
