"""Starts the worker in any Python environment, by the path of this file: Windlass need not be installed there.

The package of this file is loaded under another name, so that it does not hide an installed Windlass.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec


def main() -> None:
    folder, sys.path[0] = sys.path[0], ""  # scripts import from the current folder, not from ours
    package = ModuleSpec("windlass_stdio", None, is_package=True)
    package.submodule_search_locations = [folder]
    sys.modules["windlass_stdio"] = module_from_spec(package)
    from windlass_stdio.worker import main as work  # type: ignore[import-not-found]

    work()


if __name__ == "__main__":
    main()
