"""What `windlass doctor` says of certificates and of carriers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.contracts.lease.world import Papers

from windlass.contracts.lease.examine import examine_certificates
from windlass.core.delivery import Wakeup
from windlass.engine.doctor import Level
from windlass.queues.examine import examine_carriers
from windlass.queues.option import NO_CARRIERS, CarrierOptions


def levels(certificate: Path | None, key: Path | None, authority: Path | None, days: float = 0.0) -> list[str]:
    found = examine_certificates(certificate, key, authority, datetime.now(UTC) + timedelta(days=days))
    assert [finding for finding in found if finding.level is not Level.OK and not finding.advice] == []
    return [str(finding.level) for finding in found]


def test_certificates_that_are_good_are_so_until_they_run_out(papers: Papers) -> None:
    server = papers.server
    assert levels(server.certificate, server.key, papers.authority, -0.001) == ["note", "note", "ok"]  # within days
    assert levels(server.certificate, server.key, papers.authority, 6) == ["wrong", "note"]
    assert levels(server.certificate, server.key, papers.authority, 11) == ["wrong", "wrong"]
    assert levels(server.certificate, server.key, papers.authority, -3) == ["wrong", "wrong"]


def test_what_is_missing_or_does_not_belong_together_is_found(papers: Papers, tmp_path: Path) -> None:
    server = papers.server
    assert levels(None, None, None) == ["wrong", "wrong", "wrong"]
    assert levels(tmp_path / "none", server.key, papers.authority) == ["wrong", "note"]
    assert levels(server.key, server.key, papers.authority) == ["wrong", "note"]
    assert levels(server.certificate, papers.client.key, papers.authority) == ["note", "note", "wrong"]
    assert levels(server.certificate, tmp_path / "none", papers.authority) == ["note", "note", "wrong"]


def test_a_key_that_others_can_read_is_noted(papers: Papers, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(papers.server.key.read_bytes())
    key.chmod(0o644)
    assert levels(papers.server.certificate, key, papers.authority) == ["note", "note", "note"]


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
    monkeypatch.setattr("windlass.queues.nats.CONNECT_S", 0.5)
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
    assert (finding.name, finding.level, finding.advice) == ("letters", Level.NOTE, "windlass letters list")
