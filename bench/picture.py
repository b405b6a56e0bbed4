"""The picture of a run: a bar for each target. Plain SVG, so that no drawing library is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _LEFT, _RIGHT, _LINE = 1200, 650, 120, 26
_SPAN = 8.0  # the axis runs from 1/8 to 8 times the target, logarithmic
_COLOURS = {True: "#2e7d32", False: "#c62828", None: "#9e9e9e"}


def draw(entries: Sequence[dict[str, Any]]) -> str:
    """One bar per check, from the target line outwards: bars to the right exceed the target."""
    bars = [(entry, check) for entry in entries for check in entry["checks"]]
    height = 70 + _LINE * len(bars)
    commit, machine = (entries[0]["commit"][:12], entries[0]["machine"]) if entries else ("", "")
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" {font}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(12, 24, "Windlass against its targets (1 = the target, further right is better)", bold=True),
        _text(12, 42, f"{commit}, {machine}", colour="#616161"),
        *(line for number, bar in enumerate(bars) for line in _bar(70 + _LINE * number, *bar)),
        f'<line x1="{_x(1.0)}" y1="54" x2="{_x(1.0)}" y2="{height - 6}" stroke="#212121" stroke-dasharray="4 3"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bar(y: int, entry: dict[str, Any], check: dict[str, Any]) -> Iterator[str]:
    yield _text(12, y, f"{entry['id']}  {entry['what']}: {check['target']}")
    reach = _reach(check)
    if reach is None:
        yield _text(_x(1.0) + 6, y, "no figure", colour=_COLOURS[None])
        return
    left, right = sorted((_x(1.0), _x(reach)))
    colour = _COLOURS[check["holds"]]
    yield f'<rect x="{left}" y="{y - 12}" width="{max(1, right - left)}" height="16" fill="{colour}"/>'
    yield _text(_WIDTH - _RIGHT + 10, y, f"{check['value']:.3g}", colour=colour, bold=True)


def _reach(check: dict[str, Any]) -> float | None:
    """The value as a multiple of the target; inverted for an upper bound."""
    value, bound, least = check["value"], check["bound"], check["at_least"]
    if value is None:
        return None
    if not bound or not value:
        return _SPAN if check["holds"] else 1 / _SPAN
    return float(value / bound if least else bound / value)


def _x(reach: float) -> int:
    share = (math.log(min(max(reach, 1 / _SPAN), _SPAN)) / math.log(_SPAN) + 1) / 2
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT))


def _text(x: int, y: int, text: str, *, colour: str = "#212121", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="{colour}"{weight}>{escape(text)}</text>'
