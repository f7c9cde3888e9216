"""The command `auqadmm`, and `python -m auqadmm`. The version is printed without importing what commands need."""

from __future__ import annotations

import sys
from contextlib import suppress

from auqadmm import __version__


def main() -> None:
    if sys.argv[1:2] == ["--version"] and sys.stdout is not None:
        with suppress(OSError):  # a full disk, a closed pipe: the command line reports it
            sys.stdout.write(f"auqadmm {__version__}\n")
            sys.stdout.flush()
            return
    from auqadmm.cli import main as command

    command()


if __name__ == "__main__":
    main()
