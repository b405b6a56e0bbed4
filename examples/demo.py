"""The main use case from end to end, unattended: the same as `make demo` and `windlass demo`."""

import sys

from windlass.cli.demo import demo

sys.exit(demo())
