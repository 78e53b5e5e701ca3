"""``python -m examples.walkthrough PICTURE``: run the page, and leave the picture there."""

from __future__ import annotations

import sys
from pathlib import Path

from examples.walkthrough import run

for printed, _ in run(Path(sys.argv[1] if len(sys.argv) > 1 else "walkthrough.png")):
    print(printed, end="")
