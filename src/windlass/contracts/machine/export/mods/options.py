"""The options of a MODS export."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

AT_ONCE_MAX = 100
Mode = Literal["full", "minimal", "skip"]


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """The names on the wire are in camel case. `validate` is accepted and does nothing."""

    recursive: bool = False
    max_depth: Annotated[int, Meta(ge=0)] = 5
    parallel_batch_size: Annotated[int, Meta(ge=1)] = 10
    include_ocr: bool = True
    cheimarros_mode: Mode = "full"
    validate: bool = False

    @property
    def at_once(self) -> int:
        """The number of concurrent requests. The limit protects the archive and this machine."""
        return min(self.parallel_batch_size, AT_ONCE_MAX)
