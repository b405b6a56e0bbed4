"""Finds the messages on a line, with any text before, between and after them.

Workers that write from several threads put two messages on one line, and scripts print without a newline. Other text
is kept as unreadable, with the tasks that it names: a task must not wait for an answer that cannot be read.
Runs in workers of any environment: standard library only.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, NoReturn

TRIES_MAX = 1000  # opening braces that are tried on one line
SCAN_MAX = 1 << 16  # characters to scan at either end of unreadable text
_TASK = re.compile(r'"task"\s*:\s*"([^"\\]{1,200})"')
_KIND = re.compile(r'"responseType"\s*:\s*"([A-Z]+)"')
_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
NO_ENDS = frozenset({"LAUNCH", "UPDATE"})


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_decoder = json.JSONDecoder(parse_constant=_refuse)
_decode, _decode_at = _decoder.decode, _decoder.raw_decode


class Unreadable(NamedTuple):
    """Text that is no message, and why."""

    text: str
    why: str
    whole: bool = False  # it is JSON, and no message: a script printed it

    @property
    def tasks(self) -> list[str]:
        """The ids of tasks in it."""
        return list(dict.fromkeys(_TASK.findall(self._ends)))

    @property
    def ends_something(self) -> bool:
        """Whether it may have been the end of a task."""
        kinds = _KIND.findall(self._ends)
        if self.whole or (kinds and NO_ENDS.issuperset(kinds)):
            return False
        return '"responseType"' in self._ends or bool(self.tasks)

    @property
    def _ends(self) -> str:
        return self.text if len(self.text) <= 2 * SCAN_MAX else self.text[:SCAN_MAX] + self.text[-SCAN_MAX:]


def read_line(line: bytes, kind: str) -> list[dict[str, Any] | Unreadable]:
    """The whole line, in order. A message is an object with `task` and the key `kind`."""
    try:
        value = _decode(line.decode())
        if isinstance(value, dict) and "task" in value:
            return [value]
        return [Unreadable(line.decode(), "it is not a message", whole=True)]
    except (ValueError, RecursionError) as error:
        return _pieces(line.decode("utf-8", "surrogateescape"), kind, str(error) or type(error).__name__)


def _pieces(text: str, kind: str, why: str) -> list[dict[str, Any] | Unreadable]:
    found: list[dict[str, Any] | Unreadable] = []
    begun, at = 0, text.find("{")  # where unreadable text begins, and the next opening brace
    for _ in range(TRIES_MAX):
        if at < 0:
            break
        try:
            value, end = _decode_at(text, at)
            if not isinstance(value, dict) or "task" not in value or kind not in value:
                raise ValueError("it is not a message")  # noqa: TRY301
            if _NOT_UTF_8.search(text, at, end):
                raise ValueError("it is not UTF-8")  # noqa: TRY301
        except (ValueError, RecursionError) as error:
            if at == begun:
                why = str(error) or type(error).__name__
            at = text.find("{", at + 1)
            continue
        if text[begun:at].strip():
            found.append(_unreadable(text[begun:at], why))
        found.append(value)
        begun, at = end, text.find("{", end)
    if text[begun:].strip():
        found.append(_unreadable(text[begun:], why))
    return found


def _unreadable(text: str, why: str) -> Unreadable:
    return Unreadable(_NOT_UTF_8.sub("\ufffd", text), why)
