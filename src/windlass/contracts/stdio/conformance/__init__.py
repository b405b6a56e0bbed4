"""The conformance kit of the stdio contract: numbered cases for any program, in any language."""

from windlass.contracts.stdio.conformance.case import KIT, check_worker
from windlass.contracts.stdio.conformance.script import LANGUAGES, Scripts, read_scripts

__all__ = ["KIT", "LANGUAGES", "Scripts", "check_worker", "read_scripts"]
