"""The former name of `windlass.serve`, kept until the first release."""

from windlass.serve import *  # noqa: F403
