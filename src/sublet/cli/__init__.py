"""The command line: `app` has the commands."""
