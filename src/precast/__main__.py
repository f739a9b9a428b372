"""`python -m precast` is `precast`."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The command line. Ctrl-C ends it in one line also while its modules are imported."""
    try:
        from precast.cli import main as run
    except KeyboardInterrupt:
        print("cancelled", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
