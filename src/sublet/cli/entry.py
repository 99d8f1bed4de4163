"""The entry point of the console script: `sublet --version` answers without importing the commands."""

import sys
from importlib import import_module
from importlib.metadata import version


def main() -> None:
    """Run the command line, and end the process with its exit status."""
    if sys.argv[1:] == ["--version"]:
        print(f"sublet {version('sublet')}")
    else:
        import_module("sublet.cli.app").main()
