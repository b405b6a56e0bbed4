"""The command line as a person meets it: help, wrong use, exit codes, what goes to which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App
from docs.command_page import commands
from tests.cli.command import WINDLASS, environment, windlass

from windlass.cli.commands import app
from windlass.cli.output import command_to_type

COMMANDS = (
    "check", "config", "demo", "dev", "doctor", "keys", "migrate", "queues", "runs", "secrets", "serve", "signals",
    "submit", "tasks", "worker", "workers",
)  # fmt: skip
KITS = ("callback", "lease", "machine", "registry", "stdio")
SPEAKS_ONLY_JSON = {"windlass stdio worker", "windlass wrapper"}  # on their standard output, asked or not
HAS_FORMATS_OF_ITS_OWN = {"windlass psql"}


def test_help_names_every_command_with_what_it_does_and_the_exit_codes() -> None:
    done = windlass("--help")

    assert (done.returncode, done.stderr) == (0, "")
    described = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("│ ")}
    assert [name for name in COMMANDS if len(described[name].split()) < 4] == []
    assert "Exit codes: 0 done, 1 failed or refused, 2 wrong use or setting, 3 " in done.stdout


@pytest.mark.parametrize(
    "words", [(), ("serve",), ("conformance",), *(("conformance", name) for name in KITS)], ids=" ".join
)
def test_help_fits_a_terminal_of_80_columns(words: tuple[str, ...]) -> None:
    done = windlass(*words, "--help", COLUMNS="80")

    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("frobnicate",), 'Unknown command "frobnicate"'),
        (("migrate", "--nonsense"), "--nonsense"),
        (("migrate", "--target", "x"), '"x"'),
        (("worker",), "target"),
        (("config", "show", "extra"), "extra"),
    ],
)
def test_wrong_use_is_one_line_on_standard_error_and_exit_code_2(arguments: tuple[str, ...], says: str) -> None:
    done = windlass(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error ")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_setting_is_named_with_its_origin_and_ends_with_code_2(tmp_path: Path) -> None:
    (tmp_path / "windlass.toml").write_text('htpp = "h:1"\n')

    done = windlass("config", "show", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error htpp in windlass.toml is not a setting; did you mean http?\n"


def test_an_error_is_an_object_for_programs(tmp_path: Path) -> None:
    done = windlass("config", "show", "--json", WINDLASS_HTTP="8420")

    assert done.returncode == 2
    assert json.loads(done.stderr) == {
        "error": {
            "code": "usage",
            "message": "http: must be HOST:PORT, such as 127.0.0.1:8420 (set by WINDLASS_HTTP)",
            "field": "http",
            "origin": "WINDLASS_HTTP",
        }
    }


def test_config_show_tells_value_and_origin_and_hides_secrets(tmp_path: Path) -> None:
    (tmp_path / "windlass.toml").write_text('namespace = "shop"\napi_key = "wl_very-secret"\n')
    url = "postgresql://ada:very-secret@db.example/shop"

    done = windlass("config", "show", "--origin", cwd=tmp_path, DATABASE_URL=url)

    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.splitlines()}
    assert lines["name"] == ["value", "origin"]
    assert lines["database_url"] == ["postgresql://ada:***@db.example/shop", "DATABASE_URL"]
    assert lines["api_key"] == ["********", "api_key in windlass.toml"]
    assert lines["namespace"] == ["shop", "namespace in windlass.toml"]
    assert lines["http"] == ["127.0.0.1:8420", "default"]
    assert "very-secret" not in done.stdout + done.stderr


def test_config_show_speaks_json_and_notices_a_misspelt_variable() -> None:
    done = windlass("config", "show", "--origin", "--json", WINDLASS_HTTP="h:1", WINDLASS_NAMESPCE="x")

    shown = {row["name"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}
    assert shown["http"] == ("h:1", "WINDLASS_HTTP")
    assert shown["pooled"] == (False, "default")
    assert done.stderr == "note WINDLASS_NAMESPCE is not a setting; did you mean WINDLASS_NAMESPACE?\n"


def test_every_command_speaks_json() -> None:
    silent = {path for path, command in commands(app, "windlass") if "--json" not in flags(command)}

    assert silent <= SPEAKS_ONLY_JSON | HAS_FORMATS_OF_ITS_OWN


def flags(command: App) -> set[str]:
    return {name for argument in command.assemble_argument_collection() for name in argument.names}


def test_nothing_is_coloured_when_it_is_piped_or_when_no_color_is_set() -> None:
    assert "\x1b" not in windlass("--help").stdout
    assert "\x1b[3" not in windlass("config", "show", FORCE_COLOR="1", NO_COLOR="1").stdout


def test_a_command_that_asks_for_settings_loads_nothing_of_the_engine() -> None:
    script = (
        "import sys; from windlass.cli.commands import run; run(['config', 'show']);"
        "print([m for m in sys.modules if m.split('.')[0] in ('asyncpg', 'uvloop') or m.startswith('windlass.engine')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [("config", "show"), ("--help",), ("tasks", "--help")])
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_has_seen_enough_is_no_error(words: tuple[str, ...], unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)  # as `… | head -0` does
    with os.fdopen(write, "wb") as broken:
        done = subprocess.run(
            [str(WINDLASS), *words], stdout=broken, stderr=subprocess.PIPE, check=False, cwd="/",
            env={**environment(), "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("on_path", [True, False])
def test_a_command_that_is_shown_is_one_that_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool
) -> None:
    """Who runs `.venv/bin/windlass` has no `windlass` on the PATH, or somebody else's."""
    for folder in (tmp_path / ".venv/bin", tmp_path / "others"):
        folder.mkdir(parents=True)
        (folder / "windlass").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv/bin/windlass")])
    monkeypatch.setenv("PATH", str(tmp_path / (".venv/bin" if on_path else "others")))
    assert command_to_type() == ("windlass" if on_path else ".venv/bin/windlass")
    monkeypatch.chdir(tmp_path / "others")
    assert command_to_type() == ("windlass" if on_path else str(tmp_path / ".venv/bin/windlass"))
