"""What a wrapper says of settings that cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.contracts.lease.worker.config import read_config
from windlass.contracts.lease.worker.dispatcher import tls_context
from windlass.contracts.lease.worker.operator import functions_of
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


OPERATORS = """
from math import sqrt

def double(task): ...
def _hidden(task): ...
"""


def test_the_functions_of_a_module_are_operators_except_those_of_others_and_hidden_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "operators_of_test_config.py").write_text(OPERATORS)

    assert functions_of("operators_of_test_config") == {"double": "operators_of_test_config:double"}
    with pytest.raises(Invalid, match="nothing_here cannot be imported"):
        functions_of("nothing_here")


def test_a_server_on_this_machine_gives_the_settings_that_nobody_else_gives(file: Path) -> None:
    own = file.with_name("own.toml")
    own.write_text('queues = ["mine"]\n\n[operators.shout]\ncommand = ["cat"]\n')

    config = read_config(own, {}, file)

    assert (config.server, config.queues, str(config.ca)) == ("https://127.0.0.1:8443", ["mine"], "ca.pem")
    assert config.operators["shout"].command == ["cat"]


def test_a_wrapper_that_names_its_server_gets_nothing_from_another_one(file: Path) -> None:
    with pytest.raises(Invalid, match="queues: is missing"):
        read_config(None, {"server": "https://elsewhere:1", "operators": {"x": {"command": ["cat"]}}}, file)
