"""Problems of a DAG file: what is wrong, and where in the file.

Owns the codes, the spelling of paths, and hints that name what was probably meant. Does not know the rules of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum

import msgspec

SHOWN_MAX = 60  # characters of a value or name in a message
HINTS_MAX = 50  # of one file: to look for a similar name costs time in the length of the list
PROBLEMS_MAX = 1000
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

Path = tuple[str | int, ...]


class Code(StrEnum):
    """What is wrong with a file. The last two are warnings."""

    YAML_SYNTAX = "yaml_syntax"
    YAML_ALIAS = "yaml_alias"
    DUPLICATE_KEY = "duplicate_key"
    TOO_LARGE = "too_large"
    UNKNOWN_FIELD = "unknown_field"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    BAD_NAME = "bad_name"
    BAD_VALUE = "bad_value"
    DUPLICATE_JOB = "duplicate_job"
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_OUTPUT = "unknown_output"
    UNKNOWN_DATASET = "unknown_dataset"
    SELF_INPUT = "self_input"
    CYCLE = "cycle"
    WHERE_INVALID = "where_invalid"
    WHERE_UNKNOWN_COLUMN = "where_unknown_column"
    APPEND_WITHOUT_KEY = "append_without_key"
    REACTIVE_WITHOUT_INPUTS = "reactive_without_inputs"
    SOURCE_WITH_INPUTS = "source_with_inputs"
    SOURCE_MISSING = "source_missing"
    STRATEGY_MISSING = "strategy_missing"
    CRON_INVALID = "cron_invalid"
    WEBHOOK_TAKEN = "webhook_taken"
    SECRET_UNTRUSTED = "secret_untrusted"  # noqa: S105  # not a password
    SECRET_UNKNOWN = "secret_unknown"  # noqa: S105
    LAMBDA_UNTRUSTED = "lambda_untrusted"
    RUNTIME_QUEUE = "runtime_queue"
    DIRECT_UNTRUSTED = "direct_untrusted"
    SCHEMA_MISSING = "schema_missing"
    SCHEMA_INVALID = "schema_invalid"
    RESERVED_COLUMN = "reserved_column"
    DATASET_TAKEN = "dataset_taken"
    MULTI_WRITER = "multi_writer"
    PARTITION_MISMATCH = "partition_mismatch"
    UNUSED_OUTPUT = "unused_output"
    NO_CONSUMER = "no_consumer"


WARNINGS = frozenset({Code.UNUSED_OUTPUT, Code.NO_CONSUMER})


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong at a place of the file. Lines and columns count from 1."""

    line: int
    column: int
    path: str
    code: Code
    message: str
    hint: str | None = None


class Hints:
    """Hints for names that do not exist. After `HINTS_MAX` of them there are no more."""

    def __init__(self) -> None:
        self._left = HINTS_MAX

    def nearest(self, name: str, known: Iterable[str]) -> str | None:
        """The known name that is most like this one, as a hint."""
        if self._left <= 0 or len(name) > SHOWN_MAX:
            return None
        self._left -= 1
        found = get_close_matches(name, list(known), n=1)
        return f"did you mean {found[0]}?" if found else None


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems in the order of the file. At most `PROBLEMS_MAX`, so that the answer to a hostile file stays small."""
    found = sorted(problems, key=lambda problem: (problem.line, problem.column))
    if len(found) <= PROBLEMS_MAX:
        return tuple(found)
    last = found[PROBLEMS_MAX]
    rest = Problem(
        last.line, last.column, "", Code.TOO_LARGE, "the problems from here on are not listed: mend the first"
    )
    return (*found[:PROBLEMS_MAX], rest)


def path_text(path: Path) -> str:
    """jobs[2].inputs[0].where"""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _WORD.fullmatch(part):
            text += f".{shown(part)}" if text else shown(part)
        else:
            text += f"[{json.dumps(shown(part))}]"
    return text


def shown(text: str) -> str:
    """A name or value as messages show it: cut, and on one line."""
    cut = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return cut if cut.isprintable() else repr(cut)[1:-1]
