"""The objects of batches, below the scratch folder of a server."""

from __future__ import annotations

from collections.abc import Callable, Collection

from windlass.datasets.rules.batch import BatchInvalid
from windlass.engine.payloads.blob_port import Blobs, check_key
from windlass.errors import Invalid, Unavailable

BATCH_MAX_BYTES = 64 * 1024 * 1024


class Scratch:
    """Reads and deletes batches by their URI. `open_` opens the store of `scratch_uri` when it is first needed."""

    def __init__(self, scratch_uri: str, open_: Callable[[], Blobs], *, batch_max_bytes: int = BATCH_MAX_BYTES) -> None:
        self._root, self._open, self.batch_max_bytes = f"{scratch_uri.rstrip('/')}/", open_, batch_max_bytes
        self._opened: Blobs | None = None

    async def read(self, uri: str) -> bytes:
        """Raises BatchInvalid for an object that is never read, NotFound if there is none, and Unavailable."""
        blob = await self._blobs.get(self._key(uri))
        if blob.size > self.batch_max_bytes:
            raise BatchInvalid(f"has {blob.size} bytes, the limit is {self.batch_max_bytes}")
        return await blob.read()

    async def delete(self, uris: Collection[str]) -> None:
        """Delete objects. One of another scratch folder is left alone: it belongs to other servers."""
        await self._blobs.delete([self._key(uri) for uri in uris if uri.startswith(self._root)])

    @property
    def _blobs(self) -> Blobs:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _key(self, uri: str) -> str:
        """The key of an object below the scratch folder, from which no name leads out."""
        if not uri.startswith(self._root):
            raise Unavailable(f"lies outside of {self._root}: the servers and the sink have different scratch_uri")
        try:
            return check_key(uri.removeprefix(self._root))
        except Invalid as error:
            raise BatchInvalid(f"the name of the object {error.message}") from None
