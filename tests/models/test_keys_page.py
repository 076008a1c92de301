"""docs/model-keys.md says what the tables of keys say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from edge.models.architectures import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "model-keys.md"


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("model_keys", PAGE.with_name("model_keys.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = PAGE.read_text(encoding="utf-8")
    assert text == module.page(), "run `python docs/model_keys.py`"
    assert not FAMILIES.keys() & set(module.OTHERS.split())
    for name, family in FAMILIES.items():
        assert name in text
        for key in (*family.keys.used, *family.keys.harmless, *family.keys.accepted):
            assert f"`{key}`" in text
