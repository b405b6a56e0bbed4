"""How a task gets what others returned: its payload names their ids, and the results are read when it runs.

The names stand under `$from`, which can be no parameter of a function. Nothing is copied when tasks are submitted or
settled, and a second attempt reads the same again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import msgspec

from windlass.core.error import Invalid

FROM = "$from"
_MARK = b'"$from"'
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_sources = msgspec.json.Decoder(dict[str, UUID | list[UUID]]).decode

Results = Callable[[Sequence[UUID]], Awaitable[dict[UUID, bytes]]]


def results_payload(parameter: str, upstream: UUID | Sequence[UUID]) -> bytes:
    """A payload whose one argument is what another task returns, or a list of what others return, in their order."""
    return msgspec.json.encode({FROM: {parameter: upstream}})


async def with_results(payload: bytes, results: Results) -> bytes:
    """The payload with the results in their places. Most payloads name none, and pay for one look."""
    if _MARK not in payload:
        return payload
    try:
        arguments = _decode(payload)
        sources = _decode_sources(arguments.pop(FROM, b"{}"))
    except (msgspec.DecodeError, msgspec.ValidationError):
        return payload  # not ours: whoever reads it will say what is wrong with it
    ids = [id_ for source in sources.values() for id_ in ([source] if isinstance(source, UUID) else source)]
    known = await results(ids) if ids else {}
    if missing := [id_ for id_ in ids if id_ not in known]:
        raise Invalid(f"what task {missing[0]} returned is not kept any more", field="payload")
    for parameter, source in sources.items():
        arguments[parameter] = msgspec.Raw(_joined(source, known))
    return msgspec.json.encode(arguments)


def _joined(source: UUID | list[UUID], known: dict[UUID, bytes]) -> bytes:
    if isinstance(source, UUID):
        return known[source]
    return b"[" + b",".join(known[id_] for id_ in source) + b"]"
