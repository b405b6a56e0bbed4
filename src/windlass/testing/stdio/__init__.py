"""Is a worker of the stdio contract one? Numbered cases, held against any program, whatever it is made of."""

from windlass.testing.stdio.case import KIT, check_worker
from windlass.testing.stdio.script import LANGUAGES, Scripts, read_scripts

__all__ = ["KIT", "LANGUAGES", "Scripts", "check_worker", "read_scripts"]
