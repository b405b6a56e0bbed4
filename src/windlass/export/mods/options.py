"""What a request for MODS may ask for."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Mode = Literal["full", "minimal", "skip"]


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """The names on the wire are in camel case. `validate` is accepted and does nothing."""

    recursive: bool = False
    max_depth: Annotated[int, Meta(ge=0, le=50)] = 5
    parallel_batch_size: Annotated[int, Meta(ge=1, le=100)] = 10
    include_ocr: bool = True
    cheimarros_mode: Mode = "full"
    validate: bool = False
