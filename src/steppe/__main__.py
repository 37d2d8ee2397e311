"""`python -m steppe` is the `steppe` command."""

from steppe.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
