"""A contract is a room: without its folder and its line in `serve.py`, the kernel and all other contracts work."""

from __future__ import annotations

import asyncio
import sys

import pytest
from tests.shape.source import ROOT
from tests.shape.test_layers import CONTRACTS

from windlass import serve

pytestmark = pytest.mark.slow


def test_serve_names_every_contract() -> None:
    assert sorted(serve.CONTRACTS) == CONTRACTS


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_windlass_works_without_a_contract(contract: str, database: str) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.shape.without_contract", contract, database, cwd=ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await program.communicate()

    assert program.returncode == 0, errors.decode()
    assert out.decode().split() == [name for name in CONTRACTS if name != contract]
