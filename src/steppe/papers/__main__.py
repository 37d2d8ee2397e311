"""`python -m steppe.papers …` is `steppe papers …`."""

import sys

from steppe.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["papers", *sys.argv[1:]]))
