"""`python -m windlass.contracts.machine.export.mods` is `windlass-export-mods`."""

from windlass.contracts.machine.export.mods.program import main

if __name__ == "__main__":
    main()
