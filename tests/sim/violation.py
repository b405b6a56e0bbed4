"""A promise that was broken, in one sentence that names whom it was given to."""

from __future__ import annotations


class Violation(Exception):
    pass
