"""Delivery `stdio`: child processes of a server that speak JSON lines claim the tasks of a queue."""

from __future__ import annotations

import re
from typing import Annotated, Self

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from windlass.core.delivery import HIDDEN, MS_MAX, Command, Delivery, Variable, Word
from windlass.core.validation import check_text
from windlass.errors import Invalid

Script = Annotated[str, Meta(min_length=1, max_length=100_000)]
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class StdioHandler(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The handler of a kind: a Python function, as `module:function`, or a script."""

    function: Annotated[str, Meta(min_length=3, max_length=500)] | None = None
    script: Script | None = None

    def check(self, field: str) -> None:
        if (self.function is None) == (self.script is None):
            raise Invalid("give a function or a script", field=field)
        if self.function is not None and not _FUNCTION.fullmatch(self.function):
            raise Invalid("must be like module:function", field=f"{field}.function")


class Stdio(Delivery, frozen=True, tag="stdio", kw_only=True, omit_defaults=True):
    """A pool of child processes that speak JSON lines, on each server that runs pools.

    The program is `command`, or our Python worker in the interpreter `python`, in an environment with `requirements`.
    Payloads are inputs. With `kinds_are_scripts`, a kind without a handler is itself the script; the client chooses it,
    so this is for programs whose scripts are names. A program gets the ordinary variables of the server (PATH, HOME,
    LANG, …) and those named in `secrets`."""

    command: Command | None = None
    python: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    requirements: Annotated[tuple[Word, ...], Meta(max_length=200)] = ()
    handlers: dict[Word, StdioHandler] = msgspec.field(default_factory=dict)
    kinds_are_scripts: bool = False
    init: Script | None = None
    cwd: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    env: dict[Word, Annotated[str, Meta(max_length=10_000)]] = msgspec.field(default_factory=dict)
    secrets: Annotated[tuple[Variable, ...], Meta(max_length=100)] = ()
    workers: Annotated[int, Meta(ge=1, le=1000)] = 1
    tasks_per_worker: Annotated[int, Meta(ge=1, le=1000)] = 1
    cancel_grace_period_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 30_000

    mark = 6
    claimed = True
    runs_programs = True

    def checked(self) -> Self:
        for word in self.command or ():
            check_text("delivery.command", word, 4000)
        if self.command is not None and (self.python is not None or self.requirements):
            raise Invalid(
                "a command brings its own environment: leave out python and requirements", field="delivery.command"
            )
        if self.command is None and self.kinds_are_scripts:
            raise Invalid("clients could run any code: give handlers instead", field="delivery.kinds_are_scripts")
        if not self.handlers and not self.kinds_are_scripts:
            raise Invalid("say what runs a kind: its function, or a script", field="delivery.handlers")
        if any(word.startswith("-") for word in (*self.requirements, self.python or "")):
            raise Invalid("must be packages, not options", field="delivery.requirements")
        for kind, handler in self.handlers.items():
            handler.check(f"delivery.handlers.{kind}")
        return self

    def without_secrets(self) -> Self:
        return replace(self, env=dict.fromkeys(self.env, HIDDEN))

    @property
    def cancel_grace_s(self) -> float:
        return self.cancel_grace_period_ms / 1000
