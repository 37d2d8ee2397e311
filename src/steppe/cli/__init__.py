"""The command line: parses, calls, prints. One file a command; heavy imports inside the command."""

from steppe.cli.main import main as main
