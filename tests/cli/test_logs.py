"""The log of a server: for people, and for whoever collects it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import logging, sys
from windlass.cli.logs import set_up_logs
from windlass.settings import Settings

set_up_logs(Settings(log_format=sys.argv[1], log_level=sys.argv[2]))
log = logging.getLogger("windlass.engine")
log.debug("too much")
log.warning("cannot reach %s", "the database", extra={"task_id": "42"})
password = "very-secret"
try:
    {}["missing"]
except KeyError:
    log.exception("a defect")
"""


def said(form: str, level: str = "info", **variables: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, form, level]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **variables})
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_line_of_json_has_the_fields_that_were_given() -> None:
    first, second = map(json.loads, said("json"))

    assert first.pop("at").endswith("Z")
    assert first == {
        "level": "warning", "logger": "windlass.engine", "task_id": "42", "message": "cannot reach the database",
    }  # fmt: skip
    assert "KeyError: 'missing'" in second["exception"]


def test_a_line_for_people_is_short() -> None:
    first, *rest = said("text")

    assert "[warning  ] cannot reach the database" in first
    assert "task_id=42" in first
    assert rest[-1] == "KeyError: 'missing'"


def test_a_traceback_tells_no_values() -> None:
    assert "very-secret" not in "".join([*said("json"), *said("text")]).replace('password = "very-secret"', "")


def test_the_level_is_that_of_the_settings() -> None:
    assert "too much" in said("text", "debug")[0]
    assert len(said("json", "error")) == 1


def test_a_variable_that_is_nearly_a_setting_is_told_of_when_a_server_starts() -> None:
    first, *_ = said("text", WINDLASS_DATABSE_URL="postgresql://x/y", WINDLASS_TEST_DATABASE_URL="postgresql://x/y")

    assert "WINDLASS_DATABSE_URL is not a setting; did you mean WINDLASS_DATABASE_URL?" in first
    assert "cannot reach the database" in said("text", WINDLASS_TEST_DATABASE_URL="postgresql://x/y")[0]


def test_debug_shows_ours_and_not_what_libraries_say() -> None:
    program = """
import logging
from windlass.cli.logs import set_up_logs
from windlass.settings import Settings

set_up_logs(Settings(log_level="debug"))
for name in ("grpc._cython.cygrpc", "grpc", "asyncio", "asyncpg", "botocore.hooks", "urllib3.connectionpool"):
    logging.getLogger(name).debug("theirs")
logging.getLogger("windlass.registry").debug("ours")
logging.getLogger("shop.orders").debug("the program's own")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "theirs" not in done.stderr
    assert "ours" in done.stderr
    assert "the program's own" in done.stderr
