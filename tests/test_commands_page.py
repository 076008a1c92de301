"""docs/commands.md documents every command and every option."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import click
import pytest

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("commands_page", PAGE.with_suffix(".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator: ModuleType) -> None:
    assert PAGE.read_text(encoding="utf-8") == generator.page(), "run `python docs/commands.py`"


def test_every_command_and_option_says_what_it_does(generator: ModuleType) -> None:
    from edge.apps.cli import edge

    count = 0
    for path, command in generator.commands(edge, ("edge",)):
        name = " ".join(path)
        assert command.help, f"{name} has no help"
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                count += 1
                assert option.help or isinstance(option.type, click.Choice) or option.show_default, (
                    f"{name} {option.opts}"
                )
                assert generator._names(option) in PAGE.read_text(encoding="utf-8")
    assert count > 100
