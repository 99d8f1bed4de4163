"""`python -m sublet` is the command line."""

from sublet.cli.app import main

main()
