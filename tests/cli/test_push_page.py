"""The page on pushing can be followed: its service, its commands, in a folder with nothing else in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import environment
from tests.cli.conftest import Dev
from tests.kit.ports import free_port

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/howto/push-to-services.md"


@pytest.fixture
def service(dev: Dev, tmp_path: Path) -> Iterator[str]:
    """The first program of the page, under uvicorn, with the secret that the command says."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/windlass"
    dev("queues", "push", "mail", url, "--heartbeat-interval", "1s")
    secret = dev("queues", "secret", "mail").stdout.strip()
    program = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "shop.py").write_text(program)
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "shop:api", "--port", str(port)],
        cwd=tmp_path, env=environment(WINDLASS_SIGNING_SECRET=secret), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    while "running on" not in process.stderr.readline():
        assert process.poll() is None
    yield url
    process.terminate()
    process.communicate(timeout=60)


def test_the_page_can_be_followed(dev: Dev, service: str) -> None:
    payload = json.dumps({"to": "ada@example.org"})
    sent = dev("submit", "shop.send", "--queue", "mail", "--payload", payload, "--wait", "--json")
    resized = dev("submit", "shop.resize", "--queue", "mail", "--payload", '{"image": "cat"}', "--wait", "--json")

    assert json.loads(sent.stdout)["result"] == "1 × ada@example.org", sent.stderr
    assert json.loads(resized.stdout)["result"] == "small cat", resized.stderr
