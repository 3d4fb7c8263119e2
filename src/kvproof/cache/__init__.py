"""Moved: this room is kvproof.kinds (the function kvproof.cache needs the name). Do not import."""

from kvproof.kinds import *  # noqa: F403
from kvproof.kinds import __all__  # noqa: F401
