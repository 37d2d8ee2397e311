"""The command line, one file per command. Commands parse, call other rooms and print.

May import every other room, but only inside the commands, so that `steppe --help` is fast.
"""

from steppe.cli.main import main as main
