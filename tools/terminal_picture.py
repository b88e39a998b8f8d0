"""A command's coloured output as an SVG picture, for the docs.

FORCE_COLOR=1 muster queues | python tools/terminal_picture.py docs/images/queues.svg --title 'muster queues'
"""

import argparse
import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main() -> None:
    """Standard input to an SVG file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--title", default="")
    parser.add_argument("--width", type=int, default=120, help="columns")
    arguments = parser.parse_args()
    console = Console(record=True, width=arguments.width, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(sys.stdin.read()), no_wrap=True, crop=True)
    picture = console.export_svg(title=arguments.title)
    # rich names a font on the network; without it the reader's own monospace is used.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    arguments.out.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
