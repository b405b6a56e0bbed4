"""The main job from end to end, without a person: the same as `make demo` and `windlass demo`."""

import sys

from windlass.cli.demo import demo

sys.exit(demo())
