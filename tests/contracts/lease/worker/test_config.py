"""What a wrapper says of settings that cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.contracts.lease.worker.config import read_config
from windlass.contracts.lease.worker.dispatcher import tls_context
from windlass.errors import Invalid

SETTINGS = """
server = "https://127.0.0.1:8443"
queues = ["words"]
certificate = "client.pem"
key = "client-key.pem"
ca = "ca.pem"

[operators.shout]
command = ["tr", "a-z", "A-Z"]
trusted = false
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "wrapper.toml"
    made.write_text(SETTINGS)
    return made


def test_a_setting_that_is_none_is_named_with_what_may_be_meant(file: Path) -> None:
    file.write_text(SETTINGS.replace("queues", "quues"))

    with pytest.raises(Invalid, match=r"^quues in .*wrapper.toml is not a setting; did you mean queues\?$"):
        read_config(file, {})


def test_what_an_operator_may_read_is_looked_for_where_the_wrapper_is_started(file: Path) -> None:
    file.write_text(SETTINGS + 'read = ["shelf"]\n')

    with pytest.raises(Invalid, match=r"there is no .*shelf"):
        read_config(file, {})
    (file.parent / "shelf").mkdir(mode=0o755)
    assert read_config(file, {}).operators["shout"].read == [file.parent / "shelf"]


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    (file.parent / "client.pem").touch()

    with pytest.raises(Invalid, match=r"there is no file client-key\.pem"):
        tls_context(Path("client.pem"), Path("client-key.pem"), Path("ca.pem"))
