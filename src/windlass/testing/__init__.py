"""For tests of programs that use Windlass: a real engine in the process of the test, a clock that jumps, faults.

With pytest, use the fixture `windlass_kit`, or `windlass_kit_sync` in a test without an event loop; without pytest,
`open_kit`, `open_kit_sync` and `open_test_server`. Names are imported when they are first used, since pytest imports
this package with its plugin even where no test uses it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.testing.clock import VirtualClock as VirtualClock
    from windlass.testing.clock import virtual_clock as virtual_clock
    from windlass.testing.database import TestServer as TestServer
    from windlass.testing.database import open_test_server as open_test_server
    from windlass.testing.kit import Kit as Kit
    from windlass.testing.kit import OpenKit as OpenKit
    from windlass.testing.kit import Stuck as Stuck
    from windlass.testing.kit import open_kit as open_kit
    from windlass.testing.loops import OpenSyncKit as OpenSyncKit
    from windlass.testing.loops import SyncKit as SyncKit
    from windlass.testing.loops import open_kit_sync as open_kit_sync

_MODULES = {
    "Kit": "kit",
    "OpenKit": "kit",
    "OpenSyncKit": "loops",
    "Stuck": "kit",
    "SyncKit": "loops",
    "TestServer": "database",
    "VirtualClock": "clock",
    "open_kit": "kit",
    "open_kit_sync": "loops",
    "open_test_server": "database",
    "virtual_clock": "clock",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"windlass.testing.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'windlass.testing' has no attribute {name!r}")
