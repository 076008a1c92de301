"""`RequestOptions`: the options of one kind of request. Each stands once, as a field that `option` makes: the command
line, JSON requests, tools of MCP and Python calls take it from there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from edge.errors import ArgumentError, InputError

Options = TypeVar("Options", bound="RequestOptions")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Option:
    """Beside its field's name, type and default: a sentence or two of help (of a flag, its effect; one that is on by
    default is turned off), what an error message calls it, its flags, or what stands for it as an argument of a command
    (`TEXT`, `[TEXT]`, `TEXT...`), its name in JSON if that differs, the bounds of a
    number, the placeholder on the command line, the only texts that it takes, and whether tools of MCP have it."""

    help: str
    what: str
    flags: tuple[str, ...]
    json: str
    least: float | None
    most: float | None
    metavar: str | None
    choices: tuple[str, ...]
    agents: bool


Moment = Any
"""A moment or a day: a text or a number in JSON, in Python also a `datetime` or a `date`."""


class Kind(NamedTuple):
    """A type of options: by which `value_type` names it, what JSON may give, what an error calls that, its schema, and
    what the command line reads."""

    type: Any
    given: tuple[type, ...]
    wanted: str
    schema: dict[str, Any]
    click: type = str


_ENTRIES = 100_000

_KINDS = {
    "int": Kind(int, (int,), "a whole number of 64 bits", {"type": "integer"}, int),
    "float": Kind(float, (int, float), "a finite number", {"type": "number"}, float),
    "bool": Kind(bool, (bool,), "true or false", {"type": "boolean"}, bool),
    "str": Kind(str, (str,), "a text", {"type": "string"}),
    "Moment": Kind(object, (str, int, float), "a text or a number", {"type": "string"}),
    "Mapping[str, Any]": Kind(dict, (dict,), "an object", {"type": "object"}),
    "Mapping[str, str]": Kind(Mapping, (dict,), "an object of texts", {"type": "object"}),
    **dict.fromkeys(("Conditions", "Sequence[str]"), Kind(
        list, (list,), f"a text or a list of at most {_ENTRIES:,} texts, the most of one request",
        {"type": "array", "items": {"type": "string"}},
    )),
}  # fmt: skip
"""By a field's annotation."""


def metadata(
    help: str,
    *flags: str,
    what: str = "",
    json: str = "",
    least: float | None = None,
    most: float | None = None,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    agents: bool = True,
) -> dict[str, Option]:
    return {"option": Option(help, what, flags, json, least, most, metavar, choices, agents)}


def option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    return field(default=default, metadata=metadata(help, *flags, **more))


class RequestOptions:
    __slots__ = ()

    @classmethod
    def of(cls: type[Options], options: Options | None = None, **named: Any) -> Options:
        """Options for a Python call: those given, changed by arguments that are named one by one."""
        if not named and options is not None:
            return options
        known: dict[str, object] = cast("Any", cls).__dataclass_fields__
        if unknown := sorted(named.keys() - known.keys()):
            raise ArgumentError(f"there is no option {unknown[0]!r}; there are {', '.join(known)}")
        return cls(**named) if options is None else replace(cast("Any", options), **named)

    @classmethod
    def options(cls) -> dict[str, tuple[Field[Any], Option]]:
        found = ((each, each.metadata["option"]) for each in fields(cast("Any", cls)) if "option" in each.metadata)
        return {option.json or each.name: (each, option) for each, option in found}

    @classmethod
    def from_json(cls: type[Options], values: Mapping[str, Any]) -> Options:
        """From a JSON object, which may hold other members. A null counts as absent."""
        options = cls.options().items()
        return cls(**{
            each.name: _read(name, kind_of(each), values[name])
            for name, (each, _) in options
            if values.get(name) is not None
        })  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads them; defaults are left out."""
        found: dict[str, Any] = {}
        for name, (each, _) in self.options().items():
            value = getattr(self, each.name)
            value = list(value) if isinstance(value, tuple) else getattr(value, "texts", value)
            if value != each.default and value != []:
                found[name] = value
        return found

    @classmethod
    def schema(cls) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name, (each, option) in cls.options().items():
            described = f"false: {option.help}" if each.default is True else option.help
            optional = {"minimum": option.least, "maximum": option.most, "default": each.default}
            found[name] = {**kind_of(each).schema, "description": described} | {
                key: value for key, value in optional.items() if isinstance(value, int | float | str)
            }
        return found

    @classmethod
    def add_to(cls, command: Command) -> Command:
        """Adds the options to a command's function, which gets them as its argument `options`."""
        return cls.adding()(command)

    @classmethod
    def adding(cls, **usual: Any) -> Callable[[Command], Command]:
        import click

        taken = [(each, option) for each, option in cls.options().values() if option.flags]
        taken.sort(key=lambda pair: pair[1].flags[0].startswith("["))  # an argument that may be left out comes last

        def decorate(command: Command) -> Command:
            @wraps(command)
            def call(*args: Any, **given: Any) -> Any:
                values = {each.name: given.pop(each.name) for each, _ in taken}
                values = {name: value for name, value in values.items() if value is not None}
                return command(*args, options=cls(**values), **given)

            for each, option in reversed(taken):
                kind, default = value_type(each), usual.get(each.name, each.default)
                more: dict[str, Any] = {"help": option.help}
                if not option.flags[0].startswith("-"):
                    _argument(each, option.flags[0])(call)
                    continue
                if kind is bool and "/" in option.flags[-1]:
                    more["default"] = None
                elif kind is bool:
                    more["is_flag"] = True
                    more["callback"] = (lambda context, parameter, value: not value) if default else None
                else:
                    shown = default if isinstance(default, int | float | str) else None
                    values = click.Choice(option.choices) if option.choices else kind_of(each).click
                    more |= {"type": values, "default": shown, "multiple": kind is list}
                    more |= {"metavar": option.metavar, "show_default": bool(shown)}
                    if kind is dict:
                        more["callback"] = _json_object
                click.option(*option.flags, each.name, **more)(call)
            return cast("Command", call)

        return decorate

    def __post_init__(self) -> None:
        for each, option in self.options().values():
            value = getattr(self, each.name)
            if option.choices and value is not None and value not in option.choices:
                raise InputError(f"{each.name} is {' or '.join(option.choices)}, not {value!r}")
            if value is None or value is each.default or value_type(each) not in (int, float, bool):
                continue
            most = sys.float_info.max if option.most is None else option.most
            if option.least is not None and not option.least <= value <= most:
                bounds = f"at least {option.least:,}" if option.most is None else f"{option.least:,} to {option.most:,}"
                raise InputError(f"{option.what} must be {bounds}, not {value}")
            object.__setattr__(self, each.name, value_type(each)(value))  # a number of numpy becomes one of Python


def _argument(each: Field[Any], metavar: str) -> Callable[[Command], Command]:
    """An argument, of all further words if it ends with dots; a text is of words that are joined by spaces."""
    import click

    text, several = value_type(each) is str, metavar.endswith("...")
    return click.argument(
        each.name, required=text and metavar[0] != "[", nargs=-1 if several else 1, metavar=metavar,
        callback=(lambda context, parameter, words: " ".join(words)) if text and several else None,
    )  # fmt: skip


def _json_object(context: Any, parameter: Any, text: str | None) -> Any:
    if text is None:
        return None
    name = parameter.opts[-1]
    try:
        value = json.loads(text)
    except RecursionError:
        raise InputError(f"{name} is nested too deep") from None
    except ValueError as error:
        raise InputError(f"{name} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{name} takes a JSON object, not {text}")
    return value


def kind_of(each: Field[Any]) -> Kind:
    return _KINDS[str(each.type).removesuffix(" | None")]


def value_type(each: Field[Any]) -> Any:
    """`list` of texts, `dict` for an object, `Mapping` for one of texts, `object` for a moment, or a type of JSON."""
    return kind_of(each).type


_SAID: dict[type, str] = {list: "a list", dict: "an object", bool: "true or false"}


def _read(name: str, kind: Kind, value: Any) -> Any:
    if kind.type is list and isinstance(value, str):
        value = [value]
    fits = isinstance(value, kind.given) and isinstance(value, bool) == (kind.type is bool)
    if fits and kind.type in (int, float):
        fits = abs(value) < 2**63
    elif fits and kind.type in (list, Mapping):
        texts = value if kind.type is list else value.values()
        fits = len(texts) <= _ENTRIES and all(isinstance(text, str) for text in texts)
    if fits:
        return float(value) if kind.type is float else value
    said = repr(value[:60]) if isinstance(value, str) else _SAID.get(type(value)) or str(value)[:60]
    raise InputError(f"the field `{name}` must be {kind.wanted}, not {said}")
