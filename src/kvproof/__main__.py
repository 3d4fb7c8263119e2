"""python -m kvproof."""

from kvproof.surfaces.cli import main

main()
