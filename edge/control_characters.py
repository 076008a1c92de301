"""Characters that have no place in a text: they steer whatever shows it."""

from __future__ import annotations

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""One control character other than TAB and LF: escapes, bells, and what else a terminal obeys instead of showing it."""
