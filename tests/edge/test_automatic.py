"""`device = "auto"`: what was measured is kept until torch changes; without it the host alone works."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from edge import plugins
from edge.config import Config
from edge.plugins import AutomaticDevice


@pytest.fixture(autouse=True)
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The version of a torch that is there or not."""
    versions = ["2.11"]

    def version(name: str) -> str:
        if not versions:
            raise PackageNotFoundError(name)
        return versions[0]

    monkeypatch.setattr(plugins, "version", version)
    monkeypatch.setattr(plugins, "_file", lambda: tmp_path / "cache" / "device.json")
    return versions


def test_the_measured_card_is_the_device_with_its_options() -> None:
    assert Config(device="auto").opened_device == ""
    assert Config(device="auto", device_memory="2GB").opened_device == ""
    AutomaticDevice("cuda", "the card reranks faster").store()
    assert Config(device="auto").opened_device == "cuda"
    assert Config(device="auto:on=cuda:1", device_memory="2GB").opened_device == "cuda:on=cuda:1,cap=2GB"
    assert Config(device="limited").opened_device == "limited"
    assert Config().opened_device == ""


def test_a_measurement_holds_until_torch_changes(torch: list[str], tmp_path: Path) -> None:
    AutomaticDevice("cuda", "it is faster").store()
    assert str(AutomaticDevice.stored()) == "auto takes cuda, because it is faster"
    torch[0] = "2.12"
    assert str(AutomaticDevice.stored()).startswith("auto takes the host, because `edge doctor` has compared no card")
    AutomaticDevice("", "the card is slower").store()
    assert AutomaticDevice.stored() == AutomaticDevice("", "the card is slower")
    torch.clear()
    assert str(AutomaticDevice.stored()) == "auto takes the host, because torch is not installed"
    AutomaticDevice("cuda", "it is faster").store()
    torch.append("2.12")
    for damage in ("{", "[]", '{"torch": "2.12"}'):
        (tmp_path / "cache" / "device.json").write_text(damage)
        assert AutomaticDevice.stored().name == ""


def test_nothing_is_loaded_for_it() -> None:
    program = (
        "import sys; from edge.config import Config; Config(device='auto').opened_device; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
