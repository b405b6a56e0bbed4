"""`windlass-export-mods`: entities of an archive as MODS 3.8, one record or a whole tree."""
