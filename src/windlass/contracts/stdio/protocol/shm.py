"""Blocks of shared memory and arrays in them, by name, with or without numpy.

The process that made a block unlinks it, or the client that took it over from its worker. For processes that are
killed, Python's resource tracker does it, which is a separate process.
"""

from __future__ import annotations

import _posixshmem
import atexit
import math
import mmap
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .wire import TYPE

PREFIX = "WINDLASS_STDIO_BLOCKS"  # variable with the prefix of a worker's block names, by which its client finds them
FOLDER = "/dev/shm"  # noqa: S108 - where Linux shows them
_DTYPE = re.compile(r"(u?int|float|complex)(8|16|32|64|128|256)")

_owned: set[str] = set()  # names that this process has to unlink
_prune_at = 64
_pid = os.getpid()


class BlockMissing(OSError):
    """There is no block of that name, or it is smaller than its content should be."""


class SharedMemory:
    """A block: a new one without a name, else the one of that name. `buf` is its memory."""

    appose_type = "shm"

    def __init__(self, name: str | None = None, create: bool = False, rsize: int = 0) -> None:
        self._owner = create or name is None
        if self._owner and rsize <= 0:
            raise ValueError("the size of a block must be at least 1")
        self.name = _create(name, rsize) if self._owner else str(name)
        try:
            self.map = _map_block(self.name, rsize)
        except BaseException:
            if self._owner:
                _unlink(self.name)
            raise
        self.rsize = rsize or len(self.map)
        self._view: memoryview | None = None

    @property
    def size(self) -> int:
        return len(self.map)

    @property
    def buf(self) -> memoryview:
        if self._view is None:
            self._view = memoryview(self.map)
        return self._view

    def take_over(self) -> None:
        """From here on, this process has to unlink it."""
        if self.name not in _owned:
            self._owner = True
            _own(self.name)

    def close(self) -> None:
        """Unmap the memory, if no array uses it."""
        if self._view is not None:
            with suppress(BufferError):
                self._view.release()
                self._view = None
        with suppress(BufferError):
            self.map.close()

    def unlink(self) -> None:
        """Remove its name; processes that have it mapped keep the memory."""
        _unlink(self.name)

    def dispose(self) -> None:
        """Unlink it if it is ours, and unmap it."""
        if self._owner:
            self.unlink()
        self.close()

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def to_wire(self) -> dict[str, Any]:
        return {TYPE: "shm", "name": self.name, "rsize": self.rsize}

    def __repr__(self) -> str:
        return f"SharedMemory({self.name!r}, rsize={self.rsize})"


class NDArray:
    """An array of numbers in shared memory, in C order. `ndarray()` is numpy's view of it, without a copy."""

    appose_type = "ndarray"

    def __init__(self, dtype: Any, shape: Sequence[int], shm: SharedMemory | None = None) -> None:
        self.dtype = (
            dtype if isinstance(dtype, str) else str(getattr(dtype, "name", None) or _numpy().dtype(dtype).name)
        )
        self.shape = [_length(each) for each in shape]
        needed = item_size(self.dtype) * math.prod(self.shape)
        self.shm = SharedMemory(create=True, rsize=max(1, needed)) if shm is None else shm
        if self.shm.size < needed:
            raise BlockMissing(f"the block {self.shm.name} has {self.shm.size} bytes, its array needs {needed}")

    def ndarray(self) -> Any:
        return _numpy().ndarray(tuple(self.shape), dtype=self.dtype, buffer=self.shm.map)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.ndarray() if dtype is None else self.ndarray().astype(dtype, copy=False)
        return array.copy() if copy else array

    def dispose(self) -> None:
        self.shm.dispose()

    def __enter__(self) -> NDArray:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def to_wire(self) -> dict[str, Any]:
        return {TYPE: "ndarray", "dtype": self.dtype, "shape": self.shape, "shm": self.shm.to_wire()}

    def __repr__(self) -> str:
        return f"NDArray({self.dtype!r}, {self.shape}, {self.shm!r})"


def share(array: Any) -> NDArray:
    """A numpy array copied once into shared memory; after that it is sent without a copy."""
    shared = NDArray(array.dtype, array.shape)
    if array.size:
        shared.ndarray()[...] = array
    return shared


def decode_block(value: dict[str, Any]) -> SharedMemory:
    name, rsize = value.get("name"), value.get("rsize", 0)
    if not isinstance(name, str) or not isinstance(rsize, int) or isinstance(rsize, bool) or rsize < 0:
        raise BlockMissing(f"not a block of shared memory: {str(value)[:200]}")
    return SharedMemory(name, rsize=rsize)


def decode_array(value: dict[str, Any]) -> NDArray:
    shm, shape, dtype = value.get("shm"), value.get("shape"), value.get("dtype")
    if not isinstance(shm, SharedMemory) or not isinstance(shape, list) or not isinstance(dtype, str):
        raise BlockMissing(f"not an array: {str(value)[:200]}")
    return NDArray(dtype, shape, shm)


def item_size(dtype: str) -> int:
    """Bytes of one element; numpy is imported only for unusual types."""
    known = _DTYPE.fullmatch(dtype)
    if known is not None:
        return int(known[2]) // 8
    return 1 if dtype == "bool" else int(_numpy().dtype(dtype).itemsize)


def _length(value: Any) -> int:
    length = value.__index__()
    if length < 0:
        raise ValueError(f"the axis of an array cannot have the length {length}")
    return int(length)


def _numpy() -> Any:
    import numpy

    return numpy


# --------------------------------------------------------------------------------------------- names


def _create(name: str | None, size: int) -> str:
    while True:
        made = name or f"{os.environ.get(PREFIX, 'psm_')}{os.urandom(4).hex()}"
        try:
            descriptor = _posixshmem.shm_open(f"/{made}", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
        except FileExistsError:
            if name is not None:
                raise
            continue
        try:
            os.ftruncate(descriptor, size)
        except BaseException:
            _posixshmem.shm_unlink(f"/{made}")
            raise
        finally:
            os.close(descriptor)
        _own(made)
        return made


def _map_block(name: str, rsize: int) -> mmap.mmap:
    try:
        descriptor = _posixshmem.shm_open(f"/{name}", os.O_RDWR, mode=0o600)
    except (OSError, ValueError) as error:
        raise BlockMissing(f"there is no block of shared memory {name!r}: {error}") from None
    try:
        size = os.fstat(descriptor).st_size
        if size == 0 or size < rsize:
            raise BlockMissing(f"the block {name!r} has {size} bytes, not {rsize}")
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _own(name: str) -> None:
    from multiprocessing import resource_tracker

    global _prune_at
    _owned.add(name)
    resource_tracker.register(f"/{name}", "shared_memory")
    if len(_owned) > _prune_at:
        for gone in [each for each in _owned if not _exists(each)]:
            _disown(gone)  # the process that took it over has unlinked it
        _prune_at = max(64, 2 * len(_owned))


def _disown(name: str) -> None:
    from multiprocessing import resource_tracker

    if name in _owned:
        _owned.discard(name)
        resource_tracker.unregister(f"/{name}", "shared_memory")


def _unlink(name: str) -> None:
    with suppress(FileNotFoundError):
        _posixshmem.shm_unlink(f"/{name}")
    _disown(name)


def _exists(name: str) -> bool:
    try:
        os.close(_posixshmem.shm_open(f"/{name}", os.O_RDONLY, mode=0o600))
    except OSError:
        return False
    return True


def unlink_owned() -> None:
    if os.getpid() != _pid:
        return  # a fork of the owner is not the owner
    for name in list(_owned):
        _unlink(name)


def owns_any() -> bool:
    return bool(_owned)


def unlink_names() -> None:
    """Unlink without telling the resource tracker, which ends with this process."""
    for name in list(_owned):
        with suppress(OSError):
            _posixshmem.shm_unlink(f"/{name}")


def leave_owned() -> None:
    """A worker that ends before its client leaves its blocks to the client."""
    for name in list(_owned):
        _disown(name)


def unlink_beginning_with(prefix: str) -> None:
    """Unlink blocks of a worker that died, unless this process took them over."""
    with suppress(FileNotFoundError):
        for name in os.listdir(FOLDER):  # noqa: PTH208 - names, not paths
            if name.startswith(prefix) and name not in _owned:
                _unlink(name)


atexit.register(unlink_owned)
