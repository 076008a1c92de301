"""`checked_arguments`: compares every argument of a public class's methods with its annotation. The check takes some
microseconds, so code that runs often is not decorated."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, TextIO, TypeVar, Union, get_args, get_origin

from edge.errors import ArgumentError, RangeError

Class = TypeVar("Class", bound=type)

_NUMBERS: dict[Any, type] = {int: Integral, float: Real}
_MOST_BITS = 63
"""Largest number of bits of a whole number, since databases and arrays hold no more."""

_TEXTS = frozenset({"items", "texts"})
"""Parameters in which a string is a text, and only a `Path` is a path."""

_LONGEST_LOOK = 10_000
"""Items of a list that are checked. Later items are checked where they are used."""


def checked_arguments(cls: Class) -> Class:
    """A class decorator: the constructor and the public methods raise `ArgumentError` for an argument of another type
    than annotated. Numbers of numpy are numbers, path-like objects are paths, and a string is no sequence of
    strings."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if inspect.isfunction(member):
            setattr(cls, name, _door(member))
        elif isinstance(member, staticmethod):
            setattr(cls, name, staticmethod(_door(member.__func__)))
    return cls


def _door(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    annotations: dict[str, Any] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{function.__qualname__}: {error}") from None
        if not annotations:
            annotations.update(_annotations(function, signature))
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) or value is None:
                if value is None and not _fits(None, annotations[name]):
                    raise _wrong(function, signature, name, value)
                continue
            if not _fits(value, annotations[name], paths=name not in _TEXTS):
                raise _wrong(function, signature, name, value)
            if isinstance(value, int) and value.bit_length() > _MOST_BITS:
                raise RangeError(f"{function.__qualname__}: {name} has more than {_MOST_BITS} bits")
        return function(*args, **kwargs)

    return call


def _wrong(function: Callable[..., Any], signature: inspect.Signature, name: str, value: Any) -> ArgumentError:
    wanted = signature.parameters[name].annotation
    found = type(value).__name__
    if isinstance(value, list | tuple) and "[" in str(wanted):
        found += " of " + ", ".join(sorted({type(item).__name__ for item in value[:_LONGEST_LOOK]}))
    return ArgumentError(f"{function.__qualname__}: {name} must be {wanted}, not {found}")


def _annotations(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    scope = vars(sys.modules[function.__module__])
    found = {}
    for name, parameter in signature.parameters.items():
        annotation = parameter.annotation
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, scope)  # our own source
            except (NameError, AttributeError):
                annotation = Any
        found[name] = Any if annotation is inspect.Parameter.empty else annotation
    return found


def _fits(value: Any, wanted: Any, *, paths: bool = True) -> bool:
    """Whether a value has the wanted type. With `paths`, a string in a path's place must be a possible path."""
    if wanted is None or wanted is type(None):
        return value is None
    if isinstance(wanted, str | TypeVar) or wanted in (Any, object):
        return True
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        if paths and isinstance(value, str) and any(part is Path or get_origin(part) is os.PathLike for part in parts):
            _check_path(value)
        return any(_fits(value, part, paths=paths) for part in parts)
    if origin is Literal:
        return isinstance(value, tuple({type(part) for part in parts}))
    if origin is not None:
        return _fits_generic(value, origin, parts, paths)
    if wanted in _NUMBERS:
        return isinstance(value, _NUMBERS[wanted]) and not isinstance(value, bool)
    if wanted is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    if wanted in (Path, PurePath, os.PathLike):
        return _is_path(value)
    if wanted in (TextIO, BinaryIO):
        # A terminal's streams are wrapped, and the wrapper's class need not be derived from a stream.
        return hasattr(value, "read") or hasattr(value, "write")
    if not isinstance(wanted, type) or getattr(wanted, "_is_protocol", False):
        return True
    return isinstance(value, wanted)


def _is_path(value: Any) -> bool:
    if not isinstance(value, os.PathLike):
        return False
    _check_path(os.fsdecode(value))
    return True


def _check_path(path: str) -> None:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ArgumentError(f"{path!r} is no path: it holds half of a character") from None
    if "\0" in path:
        raise ArgumentError(f"{path!r} is no path: it holds a NUL")


def _fits_generic(value: Any, origin: Any, parts: tuple[Any, ...], paths: bool) -> bool:
    if origin is Callable:
        return callable(value)
    if not isinstance(origin, type):
        return True
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if origin is os.PathLike:
        return _is_path(value)
    if not issubclass(origin, Iterable) or origin.__module__ not in ("builtins", "collections.abc"):
        return isinstance(value, origin)
    if isinstance(value, str | bytes | Mapping) or hasattr(value, "__array__"):  # the truth of an array is ambiguous
        return False
    if origin in (list, tuple, set, frozenset, dict):
        if not isinstance(value, origin):
            return False
    elif not isinstance(value, Iterable) or (hasattr(origin, "__getitem__") and not hasattr(value, "__getitem__")):
        return False
    if len(parts) == 1 and isinstance(value, Collection):
        return all(_fits(item, parts[0], paths=paths) for item in islice(value, _LONGEST_LOOK))
    return True
