"""What happened in a run, line by line: equal traces are equal runs."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field
from uuid import UUID


@dataclass(slots=True)
class Trace:
    lines: list[str] = field(default_factory=list)
    verbose: bool = False

    def add(self, at_s: float, who: str, text: str) -> None:
        line = f"{at_s:10.4f} {who:<12} {text}"
        self.lines.append(line)
        if self.verbose:
            print(line, flush=True)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


def short(id_: object) -> str:
    """The end of an id: enough to follow it through a trace."""
    return str(id_)[-6:]


def mark(value: object) -> str:
    """A few characters that differ when the value does."""
    return f"{zlib.crc32(repr(value).encode()):08x}"


def described(args: tuple[object, ...]) -> str:
    return " ".join(_described(arg) for arg in args)


def _described(arg: object) -> str:
    if isinstance(arg, UUID):
        return short(arg)
    if isinstance(arg, list | tuple):
        inner = ",".join(_described(each) for each in arg[:4])
        return f"[{inner}{',…' if len(arg) > 4 else ''}]"
    text = str(arg)
    return text if len(text) <= 32 else text[:20] + "…" + mark(text)
