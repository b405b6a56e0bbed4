"""Text of others as it can be kept, sent and shown: Unicode that UTF-8 can hold, no control characters, not too long.

Every free text passes here once, whatever wire it takes afterwards. It is mended and cut, never refused: to lose what a
handler or a worker says would be worse.
"""

from __future__ import annotations

import re

TEXT_MAX = 64 * 1024
REASON_MAX = 200
REPLACEMENT = "\ufffd"
ELLIPSIS = "…"
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # line breaks and tabs are text
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
HEAD_PART = 4  # of a text that is cut in the middle, one part in so many is its beginning


def clean(text: str, longest: int = TEXT_MAX) -> str:
    """Cut at its end. PostgreSQL stores no NUL, UTF-8 no halves of a character, and terminals obey control codes."""
    text = plain(text)
    if len(text) > longest:
        text = f"{text[: max(0, longest - 1)]}{ELLIPSIS}"
    return text if text.isprintable() else _UNFIT.sub(REPLACEMENT, text)


def clean_middle(text: str, longest: int = TEXT_MAX) -> str:
    """Cut in its middle: a traceback says where it began at its beginning, and what happened at its end."""
    text = plain(text)
    if len(text) > longest:
        left_out = f"\n{ELLIPSIS} {len(text) - longest} characters left out {ELLIPSIS}\n"
        room = max(0, longest - len(left_out))
        head = room // HEAD_PART
        text = f"{text[:head]}{left_out}{text[len(text) - (room - head) :]}"[:longest]
    return clean(text, longest)


def clean_data(text: str) -> str:
    """Text within data: only what cannot be stored at all is replaced."""
    return _UNSTORABLE.sub(REPLACEMENT, text)


def words_of(error: BaseException) -> str:
    """What an exception says; empty if it says nothing. Its `__str__` is code of others: it may raise, and what it
    returns may be a kind of text of its own."""
    try:
        return plain(str(error))
    except BaseException as problem:  # also KeyboardInterrupt and SystemExit: they are raised in place of words
        return f"(no message: {type(problem).__name__} in its __str__)"


def line_of(error: BaseException) -> str:
    """Name and words in one line, as it may be kept."""
    return clean(f"{type(error).__name__}: {words_of(error)}".rstrip(": "))


def plain(text: str) -> str:
    """Text itself: a subclass of it may lie about its length, or raise."""
    return text if text.__class__ is str else str.__str__(text)
