"""The switches that stop libraries from reporting about this machine and its use.

Each library reads its variable when it is first loaded, so `import edge` sets all of them. A process that this one
starts inherits them.
"""

from __future__ import annotations

import os

REPORTS_OFF = {
    # onnxruntime 1.31 and newer keeps a device identifier in the user's cache folder and sends events to its vendor.
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub, hf_xet and transformers report versions and transfers to the hub.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment variables by which libraries are told to report nothing."""


def silence_libraries() -> None:
    """Sets the switches in the environment of this process, whatever they were before."""
    os.environ.update(REPORTS_OFF)
