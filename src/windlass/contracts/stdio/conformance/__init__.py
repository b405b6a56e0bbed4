"""Is a worker of the stdio contract one? Numbered cases, held against any program, whatever it is made of."""

from windlass.contracts.stdio.conformance.case import KIT, check_worker
from windlass.contracts.stdio.conformance.script import LANGUAGES, Scripts, read_scripts

__all__ = ["KIT", "LANGUAGES", "Scripts", "check_worker", "read_scripts"]
