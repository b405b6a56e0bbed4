"""`python -m windlass.export.mods` is `windlass-export-mods`."""

from windlass.export.mods.program import main

if __name__ == "__main__":
    main()
