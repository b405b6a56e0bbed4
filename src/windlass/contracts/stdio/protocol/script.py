"""Runs a script and finds its outputs: the value of a last expression, or of a last assignment to `result`.

Compiled scripts are cached, since clients send the same ones again and again. Does not know tasks and lines.
"""

from __future__ import annotations

import _ast
import itertools
import sys
from functools import lru_cache
from typing import Any

KEPT_MAX, KEPT_SIZE = 256, 20_000
_numbers = itertools.count(1)


class Script:
    """A compiled script: its body without a last expression, that expression, and whether it ends by assigning to
    `result`."""

    def __init__(self, text: str) -> None:
        self.text, self.name = text, f"<script {next(_numbers)}>"
        tree: Any = compile(text, self.name, "exec", _ast.PyCF_ONLY_AST)
        last = tree.body[-1] if tree.body else None
        value = None
        if isinstance(last, (_ast.Expr, _ast.Return)) and last.value is not None:
            value = _ast.Expression(tree.body.pop().value)
        self._assigns_result = _assigns_result(last)
        self._body = compile(tree, self.name, "exec") if tree.body else None
        self._last = None if value is None else compile(value, self.name, "eval")

    def run(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs. A last expression that is a dictionary is all of them; None is none."""
        if self._body is not None:
            exec(self._body, names)  # noqa: S102 - this is what a worker is for
        if self._last is not None:
            value = eval(self._last, names)  # noqa: S307
            return value if isinstance(value, dict) else _named(value)
        return _named(names.get("result")) if self._assigns_result else {}


def _named(value: Any) -> dict[str, Any]:
    return {} if value is None else {"result": value}


def _assigns_result(last: Any) -> bool:
    if isinstance(last, _ast.Assign):
        targets = last.targets
    elif isinstance(last, (_ast.AnnAssign, _ast.AugAssign)):
        targets = [last.target]
    else:
        return False
    return any(isinstance(target, _ast.Name) and target.id == "result" for target in targets)


_cached = lru_cache(KEPT_MAX)(Script)


def script_of(text: str) -> Script:
    return _cached(text) if len(text) <= KEPT_SIZE else Script(text)


def trace_of(error: BaseException, script: Script | None) -> str:
    """The traceback from the script on, with its source. The frames above it are ours."""
    import linecache
    import traceback

    trace = error.__traceback__
    while script is not None and trace is not None and trace.tb_frame.f_code.co_filename != script.name:
        trace = trace.tb_next
    if script is not None:
        lines = script.text.splitlines(keepends=True)
        linecache.cache[script.name] = (len(script.text), None, lines, script.name)
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # its `__str__` raises
        return f"{type(error).__name__} (its text cannot be made: {type(sys.exc_info()[1]).__name__})"
    finally:
        if script is not None:
            linecache.cache.pop(script.name, None)
