"""Draw the pictures of gallery.md again, by running its lines: `python docs/gallery.py`."""

import doctest
import os
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    os.chdir(HERE / "img")
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, _ = doctest.testfile(str(HERE / "gallery.md"), module_relative=False, optionflags=flags, encoding="utf-8")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
