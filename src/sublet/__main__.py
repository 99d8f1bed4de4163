"""`python -m sublet` is the command line."""

from sublet.cli import main

main()
