"""`python -m trivium` is the command `trivium`."""

from __future__ import annotations

from trivium.cli.main import main

if __name__ == "__main__":
    main()
