"""`python -m sublet` is the command line."""

from sublet.cli.entry import main

main()
