"""Settings: their list (`table`), their values (`value`), and their sources (`source`)."""

from windlass.settings.source import MASK, PREFIX, Loaded, load, misspelt, names, setting
from windlass.settings.table import BLOBS_FOLDER, Setting, Settings
from windlass.settings.value import LOOPBACK, Address, is_loopback, listed, read_address, without_password

__all__ = [
    "BLOBS_FOLDER",
    "LOOPBACK",
    "MASK",
    "PREFIX",
    "Address",
    "Loaded",
    "Setting",
    "Settings",
    "is_loopback",
    "listed",
    "load",
    "misspelt",
    "names",
    "read_address",
    "setting",
    "without_password",
]
