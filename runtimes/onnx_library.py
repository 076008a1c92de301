"""The one place that imports onnxruntime, after it has been told to report nothing."""

from __future__ import annotations

from typing import Any

from edge.privacy import silence_libraries


def load_onnxruntime() -> Any:
    """The module `onnxruntime`, with its telemetry off.

    Raises:
        ImportError: it is not installed.
    """
    silence_libraries()  # it reads the environment once, when it is imported
    import onnxruntime

    # Windows has no such variable, and the caller's program may have imported the library before.
    onnxruntime.disable_telemetry_events()
    return onnxruntime
