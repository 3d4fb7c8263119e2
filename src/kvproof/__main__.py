from kvproof.surfaces.cli import main

main()
