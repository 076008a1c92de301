"""Switches that stop libraries from reporting about this machine and its use.

Each library reads its variable when it is first loaded, so `import edge` sets all of them. Child processes inherit
them.
"""

from __future__ import annotations

import os

REPORTS_OFF = {
    # onnxruntime 1.31 and newer keeps a device identifier in the user's cache folder and sends events to its vendor.
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub, hf_xet and transformers report versions and transfers to the hub.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment variables that tell libraries to report nothing."""


def silence_libraries() -> None:
    """Sets the switches in the environment of this process, even if they have other values."""
    os.environ.update(REPORTS_OFF)
