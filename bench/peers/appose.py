"""The reference implementation of the stdio contract; measured in that row only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bench.subject import Subject


class Appose(Subject):
    name = "appose"
    part = "appose"
    requirements: ClassVar[Sequence[str]] = ["appose==0.12.0", "numpy>=2"]
    settings = "its own Python worker and client, with their defaults"

    def takes_part(self, kind: str) -> bool:
        return kind == "stdio"


SUBJECT = Appose
