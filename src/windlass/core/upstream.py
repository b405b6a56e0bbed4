"""Results as arguments: the payload of a task names other tasks, whose results are read when it runs.

The names stand under `$from`, which cannot be a parameter of a function. Nothing is copied when tasks are submitted or
settled, and a second attempt reads the same results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from windlass.errors import Invalid

FROM = "$from"
_MARK = b'"$from"'
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_sources = msgspec.json.Decoder(dict[str, UUID | list[UUID]]).decode


def results_payload(parameter: str, upstream: UUID | Sequence[UUID]) -> bytes:
    """A payload whose one argument is the result of another task, or the list of results of several, in order."""
    return msgspec.json.encode({FROM: {parameter: upstream}})


class Handover(msgspec.Struct, frozen=True):
    """A payload that names other tasks, by the parameters that get their results."""

    arguments: Mapping[str, msgspec.Raw]
    sources: Mapping[str, UUID | list[UUID]]

    @property
    def ids(self) -> list[UUID]:
        """The tasks whose results it needs."""
        return [id_ for source in self.sources.values() for id_ in ([source] if isinstance(source, UUID) else source)]

    def filled(self, results: Mapping[UUID, bytes]) -> bytes:
        """The payload with the results in their places."""
        if missing := [id_ for id_ in self.ids if id_ not in results]:
            raise Invalid(f"the result of task {missing[0]} is no longer stored", field="payload")
        handed = {name: msgspec.Raw(_joined(source, results)) for name, source in self.sources.items()}
        return msgspec.json.encode({**self.arguments, **handed})


def handover_of(payload: bytes) -> Handover | None:
    """None for a payload that names no other task. Most name none, and cost one check."""
    if _MARK not in payload:
        return None
    try:
        arguments = _decode(payload)
        return Handover(arguments, _decode_sources(arguments.pop(FROM, b"{}")))
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None  # the handler that reads the payload reports what is wrong with it


def _joined(source: UUID | list[UUID], results: Mapping[UUID, bytes]) -> bytes:
    if isinstance(source, UUID):
        return results[source]
    return b"[" + b",".join(results[id_] for id_ in source) + b"]"
