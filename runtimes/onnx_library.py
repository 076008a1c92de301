"""The only place that imports onnxruntime, with its telemetry turned off."""

from __future__ import annotations

import os
from typing import Any

from edge import REPORTS_OFF


def load_onnxruntime() -> Any:
    """The module `onnxruntime`, with its telemetry off.

    Raises:
        ImportError: onnxruntime is not installed.
    """
    os.environ.update(REPORTS_OFF)  # onnxruntime reads the environment once, at its import
    import onnxruntime

    # The variable has no effect on Windows, or if the caller's program has already imported the library.
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def load_quantization() -> Any:
    """The module `onnxruntime.quantization`, with onnxruntime's telemetry off. Raises as `load_onnxruntime`."""
    load_onnxruntime()
    from onnxruntime import quantization

    return quantization
