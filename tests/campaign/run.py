"""The campaign's command: attacks the program of this checkout, and counts the promises that held.

python tests/campaign/run.py --quick              one minute, as CI runs it
python tests/campaign/run.py --hours 1            as many cases as an hour has room for
python tests/campaign/run.py --class kills --cases 200
python tests/campaign/run.py --class kills --seed 1 --case 17      one case again
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != FOLDER]
    runpy.run_path(str(FOLDER.parent / "packages.py"))["load"]()
    from campaign.command import main

    sys.exit(main())
