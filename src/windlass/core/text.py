"""Makes foreign text storable and printable: Unicode that UTF-8 can encode, no control characters, not too long.

Every free text passes here once. Unfit characters are replaced and long text is cut, never refused: losing the message
of a handler or a worker would be worse.
"""

from __future__ import annotations

import re

TEXT_MAX = 64 * 1024
REASON_MAX = 200
REPLACEMENT = "\ufffd"
ELLIPSIS = "…"
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # line breaks and tabs are text
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
HEAD_PART = 4  # of a text that is cut in the middle, a quarter is its beginning


def clean(text: str, longest: int = TEXT_MAX) -> str:
    """Cut at the end. PostgreSQL stores no NUL, UTF-8 encodes no surrogates, and terminals obey control codes."""
    text = plain(text)
    if len(text) > longest:
        text = f"{text[: max(0, longest - 1)]}{ELLIPSIS}"
    return text if text.isprintable() else _UNFIT.sub(REPLACEMENT, text)


def clean_middle(text: str, longest: int = TEXT_MAX) -> str:
    """Cut in the middle: of a traceback, the beginning and the end matter most."""
    text = plain(text)
    if len(text) > longest:
        left_out = f"\n{ELLIPSIS} {len(text) - longest} characters left out {ELLIPSIS}\n"
        room = max(0, longest - len(left_out))
        head = room // HEAD_PART
        text = f"{text[:head]}{left_out}{text[len(text) - (room - head) :]}"[:longest]
    return clean(text, longest)


def clean_data(text: str) -> str:
    """Text within data: only characters that cannot be stored at all are replaced."""
    return _UNSTORABLE.sub(REPLACEMENT, text)


def words_of(error: BaseException) -> str:
    """The message of an exception, or an empty string. Its `__str__` is foreign code: it may raise, or return a
    subclass of str."""
    try:
        return plain(str(error))
    except BaseException as problem:  # also KeyboardInterrupt and SystemExit: they come from `__str__`
        return f"(no message: {type(problem).__name__} in its __str__)"


def line_of(error: BaseException) -> str:
    """Class and message of an exception, cleaned."""
    return clean(f"{type(error).__name__}: {words_of(error)}".rstrip(": "))


def plain(text: str) -> str:
    """A plain str: a subclass may report a wrong length, or raise."""
    return text if text.__class__ is str else str.__str__(text)
