"""The golden checkpoints, and variants of them with other tensors or another config."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

Tensors = dict[str, np.ndarray]
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture
def variant(tmp_path: Path) -> Callable[..., Path]:
    """Copies a golden checkpoint, with its tensors passed through `change` and `config` merged into its config.json
    (None removes a key)."""

    def make(name: str, change: Callable[[Tensors], Tensors] | None = None, **config: Any) -> Path:
        folder = tmp_path / f"checkpoint-{name}"
        shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
        if change is not None:
            tensors = change(load_file(folder / "model.safetensors"))
            whole = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
            save_file(whole, folder / "model.safetensors")
        content = json.loads((folder / "config.json").read_text())
        merged = {key: value for key, value in {**content, **config}.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(merged))
        return folder

    return make


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models directory of `edge`, which does not exist yet."""
    monkeypatch.setenv("EDGE_MODELS_DIR", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes version 1.0 of a wheel of files, in a folder that pip takes for its index."""
    index = tmp_path / "index"
    index.mkdir()
    for key, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(key, value)

    def make(name: str, files: Mapping[str, bytes], *, tag: str = "py3-none-any", about: str = "") -> Path:
        path = index / f"{name}-1.0-{tag}.whl"
        described = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: torch\n\n{about}"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for inside, content in {
                f"{name}/__init__.py": "raise RuntimeError('the wheel must not be run')",
                **files,
                f"{name}-1.0.dist-info/METADATA": described,
                f"{name}-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
                f"{name}-1.0.dist-info/RECORD": "",
            }.items():
                archive.writestr(inside, content)
        return path

    return make
