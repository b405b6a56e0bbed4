"""JSON from outside as types of ours: whatever is wrong with it is an error that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from windlass.core.error import Invalid, Malformed

T = TypeVar("T")
_FIELD = re.compile(r"(?: - at `\$\.?(?P<path>[^`]*)`)|(?:field `(?P<name>[^`]*)`)")


def decoded(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """Raises Malformed for what cannot even be read, Invalid for what does not have the right shape."""
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise Invalid(reason_of(error), field=field_of(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the body is not JSON in UTF-8: {error}") from None
    except RecursionError:
        raise Malformed("the body is nested too deeply") from None


def reason_of(error: msgspec.ValidationError) -> str:
    return str(error).partition(" - at ")[0]


def field_of(error: msgspec.ValidationError) -> str:
    """The path to what was wrong: `tasks[2].kind`."""
    parts = {kind: text for found in _FIELD.finditer(str(error)) for kind, text in found.groupdict().items() if text}
    return ".".join(parts[kind] for kind in ("path", "name") if kind in parts)
