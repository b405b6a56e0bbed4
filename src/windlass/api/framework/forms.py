"""Types that several forms share: names, instants, counts, each with the range that core also checks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from windlass.core.validation import COUNT_MAX, KEY_MAX, NAME_MAX, SECONDS_MAX
from windlass.engine.read.tasks import PAGE_DEFAULT

T = TypeVar("T")

PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX, pattern=PRINTABLE)]
Key = Annotated[str, Meta(min_length=1, max_length=KEY_MAX, pattern=PRINTABLE)]
Reason = Annotated[str, Meta(max_length=1000)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Timeout = Annotated[float, Meta(ge=0.001, le=SECONDS_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Positive = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
At = Annotated[datetime, Meta(tz=True)]
Limit = Annotated[int, Meta(ge=1, le=500)]
Cursor = Annotated[str, Meta(max_length=1000, pattern="^[A-Za-z0-9_-]*$", description="`next` of the page before")]
IdText = Annotated[str, Meta(min_length=26, max_length=60, description="a UUID, or prefix and ULID")]


class Listed(Struct, Generic[T], frozen=True):
    """A page. `next` is the cursor of the page that follows, null at the end."""

    items: list[T]
    next: str | None


class In(Struct, frozen=True, forbid_unknown_fields=True):
    """A namespace. Default: that of the key."""

    namespace: Name | None = None


class Paged(In, frozen=True, forbid_unknown_fields=True):
    """A page of a namespace."""

    after: Cursor | None = None
    limit: Limit = PAGE_DEFAULT


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No fields."""
