"""`trivium serve` that has lost its data whenever it starts: what it acknowledged is not kept."""

import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    arguments = sys.argv[1:]
    data = Path(arguments[arguments.index("--data") + 1])
    shutil.rmtree(data, ignore_errors=True)
    os.execv(sys.executable, [sys.executable, "-m", "trivium", "serve", *arguments])
