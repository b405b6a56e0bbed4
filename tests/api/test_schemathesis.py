"""The API does what its document says: schemathesis makes requests from it, good and bad, and checks every answer.

Seeded and bounded. Left out are the feed, which never ends (`test_change.py` is about it), and the check that all that
fits its schema is accepted: that a name in `after` must be there, or that a cursor was ours, no schema can say.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.kit.world import ROOT

from windlass import Engine
from windlass.serve import open_server

pytestmark = pytest.mark.slow

SEED, EXAMPLES = 3, 10


async def test_every_answer_is_as_the_document_says(engine: Engine, tmp_path: Path) -> None:
    async with open_server(engine, http="127.0.0.1:0", api_key=ROOT) as url:
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", "run", f"{url}/api/v1/openapi.json",
            "--header", f"Authorization: Bearer {ROOT}", "--checks", "all",
            "--exclude-checks", "positive_data_acceptance", "--exclude-path", "/api/v1/changes",
            "--seed", str(SEED), "--max-examples", str(EXAMPLES),
            "--phases", "examples,coverage,fuzzing,stateful", "--request-timeout", "20", "--no-color",
            "--generation-database", "none", "--suppress-health-check", "all", "--no-shrink", "--warnings", "off",
            cwd=tmp_path, env=os.environ | {"PYTHONHASHSEED": "0"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await run.communicate()

    assert run.returncode == 0, output.decode()[-20_000:]
