"""`edge rerank` and `edge embed`; and `read_texts` and `Lines`, which read texts within the memory limit."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from edge.apps.options import (
    OutputFile,
    Report,
    Setup,
    print_stats,
    report_options,
    setup_options,
    text_options,
    words_argument,
)
from edge.apps.serve.connection import own_options
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.requests import Embed, Rerank, vectors_of
from edge.apps.verbs.verb import EMBED, RERANK, do
from edge.budget import OperationPlan, import_nbytes
from edge.config import Config, format_size
from edge.errors import BudgetExceeded, InputError, as_storage_error
from edge.files.named_file import open_input, open_output
from edge.resident import anonymous_resident

_NOT_UTF8 = re.compile("[\udc80-\udcff]")

_COPIES = 3  # Of a line while it is read: its pieces, the joined line, and the line without white space.
_MEASURED = 128 << 10

_LEAST = 4 << 20
"""Bytes that may be read at any limit. No model fits beside so little, and its opening names the limit that works."""

_SLOT = 16

_PIECE = 1 << 20
_MOST_COUNTED = 1 << 31
"""Characters of the rest of refused texts that are read to name a limit. An input may have no end."""

_LONGEST_READ = 1 << 16  # Characters of a text beyond which a model reads no more.
_COUNTS = 2048, 4096

_PER_LINE = 200  # Upper bound on the bytes of a short text beside its characters.
_UNIT = 16


@dataclass(frozen=True, slots=True)
class InputText:
    text: str
    id: str | None

    @property
    def nbytes(self) -> int:
        return _SLOT + sum(_held(part) for part in (self, self.text, self.id))


Planned = Callable[[Sequence[str]], OperationPlan]


def read_texts(
    source: str, limit: int, libraries: Iterable[str] = (), planned: Planned | None = None
) -> list[InputText]:
    """Reads texts from a file, or from stdin for `-`: one per line, or JSON Lines with `text` and an optional `id`.
    `libraries` are imported while the texts are in memory; `planned` plans the work, so that a refusal names a limit
    that is enough for it, too."""
    name = "stdin" if source == "-" else source
    try:
        with open(sys.stdin.fileno(), "rb", closefd=False) if source == "-" else open_input(source) as file:
            documents = _documents(Lines(file, name, limit, libraries, planned))
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error
    if not documents:
        raise InputError(f"{name} holds no text")
    return documents


def _documents(lines: Lines) -> list[InputText]:
    documents: list[InputText] = []
    records: bool | None = None
    for number, line in lines:
        if records is None:  # the first line tells which of the two formats it is
            records = _is_record(line)
        documents.append(_record(line, lines.name, number) if records else InputText(line, None))
        lines.taken += documents[-1].nbytes - _held(line) - _SLOT
    return documents


class Lines:
    """Lines of UTF-8 with their numbers, stripped, without empty ones. `taken` are the bytes that the caller holds of
    them, which corrects it if it holds more or less than the line."""

    def __init__(
        self, file: BinaryIO, name: str, limit: int, libraries: Iterable[str] = (), planned: Planned | None = None
    ) -> None:
        self._planned = planned
        self.name = name
        self.taken = 0
        self._file = file
        self._limit = limit
        self._libraries = libraries

    def __iter__(self) -> Iterator[tuple[int, str]]:
        # With surrogates the message can name the line that is not UTF-8.
        file = io.TextIOWrapper(self._file, encoding="utf-8", errors="surrogateescape")
        try:
            yield from self._lines(file)
        finally:
            file.detach()  # otherwise the end of the wrapper would close the caller's file

    def _lines(self, file: TextIO) -> Iterator[tuple[int, str]]:
        limit, imported = self._limit, import_nbytes(self._libraries)
        held = anonymous_resident() + imported
        room = max(_LEAST, limit - held)
        number = measured = 0
        while line := file.readline((longest := max(0, room - self.taken) // _COPIES) + 1):
            number += 1
            if self.taken >= measured + _MEASURED:  # lines leave buffers and gaps in memory
                measured = self.taken
                room = min(room, max(_LEAST, limit - max(held, anonymous_resident() + imported - measured)))
            if len(line) > longest:
                raise self._too_much(file, number, line, held)
            if number == 1:
                line = line.removeprefix("\ufeff")
            if bad := _NOT_UTF8.search(line):
                byte = len(line[: bad.start()].encode("utf-8"))
                raise InputError(f"{self.name}, line {number}: not valid UTF-8 (byte {byte})")
            line = line.strip()
            if line:
                self.taken += _held(line) + _SLOT
                yield number, line

    def _too_much(self, file: TextIO, number: int, line: str, held: int) -> BudgetExceeded:
        """Reads the rest, piece by piece, to name a limit that is enough."""
        lines, chars, widest, longest, begun = number, 0, 1, len(line), len(line)
        while chars < _MOST_COUNTED and (piece := file.read(_PIECE)):
            chars += len(piece)
            lines += piece.count("\n")
            widest = max(widest, 1 if piece.isascii() else 4)
            parts = piece.split("\n") if piece.count("\n") < _PIECE // 8 else [piece]
            longest = max(longest, begun + len(parts[0]), *map(len, parts[1:]))
            begun = begun + len(piece) if len(parts) == 1 else len(parts[-1])
        said = (
            f"{self.name}: its texts up to line {number} need {format_size(self.taken + _COPIES * len(line))} beside "
            f"the {format_size(held)} that the process and its libraries hold, and the memory limit is "
            f"{format_size(self._limit)}; give fewer or shorter texts"
        )
        taken = self.taken + widest * (len(line) + chars) + lines * _PER_LINE
        needed = held + taken + _COPIES * widest * longest
        if chars >= _MOST_COUNTED:
            said += ", or a higher limit"
        elif self._planned is not None:
            average = -(-(self.taken + len(line) + chars) // lines)
            text = ("a" if widest == 1 else "\u00e9") * min(average, _LONGEST_READ)
            few, more = (self._planned([text] * count).refusal(self._limit, 0).needed for count in _COUNTS)
            beyond = max(0, lines - _COUNTS[1]) * (more - few) // (_COUNTS[1] - _COUNTS[0])
            needed = max(needed, held + taken + more + beyond)
        if chars < _MOST_COUNTED:
            said += f"; a limit of {format_size(needed, up=True)} is enough"
        return BudgetExceeded(said, owner="texts", asked=taken, free=max(0, self._limit - held), needed=needed)


def _held(value: object) -> int:
    return -(-sys.getsizeof(value) // _UNIT) * _UNIT


def _is_record(line: str) -> bool:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "text" in value


def _record(line: str, name: str, number: int) -> InputText:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}, line {number}: not valid JSON ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise InputError(f'{name}, line {number}: a JSON line needs a "text" that is a string')
    found = value.get("id", value.get("_id"))
    return InputText(value["text"], None if found is None else str(found))


@click.command()
@words_argument("query")
@Rerank.add_to
@text_options
@setup_options(device=True, server=True)
@report_options
def rerank(query: str, docs: str, options: Rerank, max_tokens: int | None, setup: Setup, report: Report) -> None:
    """Rank texts by how well they answer QUERY, best first."""
    config = setup.config(reranker=options.model, threshold=options.threshold, mode=options.mode)

    def planned(texts: Sequence[str]) -> OperationPlan:
        from edge.apps.store.models import texts_plan

        return texts_plan("ranking", "reranker", config, texts, max_tokens, query)

    documents = read_texts(docs, config.memory, ["edge.runtimes.reranker"], planned)
    asked = replace(
        options, query=query, texts=[document.text for document in documents], model=config.reranker or None,
        mode=config.mode, threshold=str(config.threshold),
    )  # fmt: skip
    alone = own_options(memory=setup.memory, threads=setup.threads, trace=report.trace, max_tokens=max_tokens)
    home = OwnHome(config, report.trace, max_tokens=max_tokens)
    done = do(RERANK, asked, home, alone=alone)
    _show(done.result, documents, {**done.result["stats"], "server": done.server}, report, config)
    home.write_trace()  # a ranking is not lost if its trace cannot be written


def _show(
    found: dict[str, Any], documents: list[InputText], figures: dict[str, Any], report: Report, config: Config
) -> None:
    if report.as_json:
        results = [
            {"index": index, "id": documents[index].id, "score": score, "text": documents[index].text}
            for index, score, _ in found["results"]
        ]
        layers = {"layers": found["layers"]} if "layers" in found else {}
        click.echo(json.dumps({"results": results, "stats": figures, **layers}, ensure_ascii=False))
        return
    if "layers" in found:
        click.echo(f"{len(documents)} candidates; {found['rule']}")
        for layer in found["layers"]:
            _print_layer(layer)
        click.echo("")
    for place, (index, score, _) in enumerate(found["results"], 1):
        name = documents[index].id
        label = f"[{name}] " if name is not None else ""
        click.echo(f"{place:3d}  {score:.4f}  {label}{documents[index].text}")
    if report.stats:
        print_stats(figures, config)


def _print_layer(layer: dict[str, Any]) -> None:
    scores: dict[str, float] = layer["scores"]
    order = sorted(scores.items(), key=lambda pair: (-pair[1], int(pair[0])))
    best = "  ".join(f"{i}:{score:.3f}" for i, score in order[:8])
    click.echo(f"layer {layer['layer']:2d}  CV {layer['cv']:.3f}  {len(scores)} active  best {best}")
    clusters: dict[int, list[float]] = {}
    for i, cluster in layer["clusters"].items():
        clusters.setdefault(cluster, []).append(scores[i])
    for cluster, inside in sorted(clusters.items()):
        spread = f"{max(inside):.3f} to {min(inside):.3f}"
        click.echo(f"          cluster {cluster}: {len(inside)} candidates, scores {spread}")
    moved = {name: layer[name] for name in ("selected", "dropped") if layer[name]}
    for name, ids in moved.items():
        click.echo(f"          {name}: {', '.join(map(str, sorted(ids)))}")
    if moved:
        click.echo(f"          deferred: {len(layer['deferred'])} go on")


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@click.command()
@Embed.add_to
@click.option("--out", type=OutputFile(), help="Write a .npy array [n, dim] instead.")
@text_options
@setup_options(device=True, server=True)
@report_options
def embed(docs: str, options: Embed, out: Path | None, max_tokens: int | None, setup: Setup, report: Report) -> None:
    """Embed texts; prints one JSON array per text, in the order of the input."""
    config = setup.config(embedder=options.model)

    def planned(texts: Sequence[str]) -> OperationPlan:
        from edge.apps.store.models import texts_plan

        return texts_plan("embedding", "embedder", config, texts, max_tokens)

    documents = read_texts(docs, config.memory, ["edge.runtimes.embedder"], planned)
    asked = replace(options, texts=[document.text for document in documents], model=config.embedder or None)
    alone = own_options(memory=setup.memory, threads=setup.threads, trace=report.trace, max_tokens=max_tokens)
    home = OwnHome(config, report.trace, max_tokens=max_tokens)
    done = do(EMBED, asked, home, alone=alone)
    vectors, figures = vectors_of(done.result, len(documents)), {**done.result["stats"], "server": done.server}
    if out is not None:
        _save(vectors, out)
    elif report.as_json:
        click.echo(json.dumps({"embeddings": vectors.tolist(), "stats": figures}))
    else:
        for vector in vectors:
            click.echo(json.dumps([round(float(x), 6) for x in vector]))
    if report.stats:
        print_stats(figures, config)
    home.write_trace()  # vectors are not lost if the trace cannot be written


def _save(vectors: npt.NDArray[np.float32], out: Path) -> None:
    import numpy as np

    with as_storage_error(f"{out} cannot be written"), open_output(out) as file:
        np.save(file, vectors)
    click.echo(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions written to {out}", err=True)
