"""The entry point of the console script and of `python -m sublet`.

`--version` and `doctor` answer without importing the other commands.
"""

import contextlib
import sys
from importlib import import_module
from importlib.metadata import version


def main() -> None:
    """Run the command line, and end the process with its exit status."""
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        with contextlib.suppress(OSError):  # the commands' own `--version` reports an answer that cannot be written
            print(f"sublet {version('sublet')}", flush=True)
            return
    # The doctor also answers if the other commands cannot be imported.
    import_module("sublet.cli.doctor" if sys.argv[1:2] == ["doctor"] else "sublet.cli.app").main()


if __name__ == "__main__":
    main()
