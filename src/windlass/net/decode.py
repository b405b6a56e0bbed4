"""Decodes JSON from callers into our types. An error names the field that is wrong.

Two things are corrected rather than refused. An integer may be written as `1.0`, as many languages do. And the text of
a report may contain invalid characters: a worker must always be able to report a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from windlass.errors import Invalid, Malformed

T = TypeVar("T")
_FIELD = re.compile(r"(?: - at `\$\.?(?P<path>[^`]*)`)|(?:field `(?P<name>[^`]*)`)")
_NOT_AN_INTEGER = re.compile(r"Expected `(?:[^`]*\| )?int(?: \|[^`]*)?`, got `float` - at `\$(?P<path>[^`]*)`")
_PART = re.compile(r"\.([^.\[\]]+)|\[(?:\d+|\.\.\.)\]")
_EXACT = 2.0**53  # beyond it a float does not say which integer is meant
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def decoded(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """Raises Malformed for content that is not JSON, Invalid for JSON of the wrong shape."""
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        try:
            return _with_integers(lambda value: decoder.decode(msgspec.json.encode(value)), content, error)
        except msgspec.ValidationError as last:
            raise Invalid(reason_of(last), field=field_of(last)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the body is not JSON in UTF-8: {error}") from None
    except RecursionError:
        raise Malformed("the body is nested too deeply") from None


def converted(value: object, kind: type[T]) -> T:
    """The same for a value that is already parsed. Raises msgspec.ValidationError if it has the wrong shape."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return _with_integers(lambda changed: msgspec.convert(changed, kind), msgspec.json.encode(value), error)


def decoded_report(decoder: msgspec.json.Decoder[T], content: bytes, only_text: Callable[[T], bool]) -> T:
    """The same for the report of a worker. Lone surrogates and bytes that are not UTF-8 become U+FFFD if the report
    holds text for people only: data is never changed."""
    try:
        return decoded(decoder, content)
    except Malformed:
        form = decoded(decoder, _readable(content))
        if not only_text(form):
            raise
        return form


def _readable(content: bytes) -> bytes:
    def escape(found: re.Match[bytes]) -> bytes:
        return rb"\ufffd" if _SURROGATE.fullmatch(found[0]) else found[0]

    return _ESCAPE.sub(escape, content.decode("utf-8", "replace").encode())


# --------------------------------------------------------------------------------------------- integers


def _with_integers(read: Callable[[Any], T], content: bytes, error: msgspec.ValidationError) -> T:
    """The content with `1` for `1.0` where an integer is expected. All elements of a list are corrected at once, so
    that there are few rounds."""
    value: Any = None
    rounds: set[str] = set()
    while (found := _NOT_AN_INTEGER.search(str(error))) is not None and found["path"] not in rounds:
        rounds.add(found["path"])
        try:
            value = msgspec.json.decode(content) if value is None else value
            names = [part[1] or None for part in _PART.finditer(found["path"])]
            value = _integers(value, names)
            return read(value)
        except msgspec.ValidationError as other:
            error = other
        except (ValueError, RecursionError, OverflowError):  # cannot be written as it was read
            break
    raise error


def _integers(value: Any, path: list[str | None]) -> Any:
    """The value with each integral number at this path as an integer; None in a path is every element."""
    if not path:
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT else value
    name, *rest = path
    if isinstance(value, dict):
        keys: Iterable[str] = value if name is None else (key for key in (name,) if key in value)
        return value | {key: _integers(value[key], rest) for key in keys}
    if isinstance(value, list) and name is None:
        return [_integers(item, rest) for item in value]
    return value


# --------------------------------------------------------------------------------------------- what was wrong


def reason_of(error: msgspec.ValidationError) -> str:
    return str(error).partition(" - at ")[0]


def field_of(error: msgspec.ValidationError) -> str:
    """The path to the wrong value: `tasks[2].kind`."""
    parts = {kind: text for found in _FIELD.finditer(str(error)) for kind, text in found.groupdict().items() if text}
    return ".".join(parts[kind] for kind in ("path", "name") if kind in parts)
