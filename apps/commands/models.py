"""`edge models`: get, pack, make, list, describe and calibrate models."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, get_args

import click

from edge.apps.console import ProgressBar
from edge.apps.options import CommandGroup, Setup, configure, json_option, setup_options
from edge.config import Config, format_size
from edge.errors import CorruptBlock, EdgeError, InputError
from edge.files.named_file import read_input
from edge.models import reader
from edge.models.calibration import TARGET, Calibration
from edge.models.manifest import file_sha256
from edge.models.packed import PackedModel
from edge.models.pull import pull_generator
from edge.models.registry import KNOWN, KnownModel, find_generator, installed, installed_generators, resolve
from edge.models.spec import Precision

_precision = click.option(
    "--precision", type=click.Choice(get_args(Precision)), default="int8", show_default=True, help="Of the weights."
)


@click.group(cls=CommandGroup)
def models() -> None:
    """Get, pack and inspect models."""


@models.command()
@click.argument("source")
@_precision
@click.option(
    "--dest", type=click.Path(path_type=Path), help="Where the model goes: a pack's folder, a generator's file."
)
def pull(source: str, precision: Precision, dest: Path | None) -> None:
    """Fetch SOURCE (a known name, a hub repository ORG/NAME or ORG/NAME@REVISION, or a local folder) and pack it.

    A generator is a GGUF file, not a pack. A model of another place is not replaced because it has the same name.
    """
    from edge.models.pull import pull as fetch

    if sys.stderr.isatty():
        click.echo(f"fetching {source} ...", err=True)
    known = KNOWN.get(source)
    if known is not None and known.kind == "generator":
        if precision != "int8":
            raise InputError(f"{source} is a generator, a GGUF file: leave --precision out")
        path = pull_generator(source, dest, directory=configure().models_dir or None)
        click.echo(f"{source}: generator, {format_size(path.stat().st_size)}, in {path}")
        _licence(known)
        return
    with ProgressBar("B", f"packing {source}") as progress:
        packed = fetch(source, precision, dest, directory=configure().models_dir or None, progress=progress)
    _packed(packed)
    _licence(known)


@models.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("dest", type=click.Path(file_okay=False, path_type=Path))
@_precision
@click.option("--name", help="Name of the model (the source folder's name if not given).")
def pack(source: Path, dest: Path, precision: Precision, name: str | None) -> None:
    """Pack the Hugging Face checkpoint in SOURCE into DEST."""
    from edge.models.pack import pack as pack_checkpoint

    with ProgressBar("B", f"packing {source.name}") as progress:
        packed = pack_checkpoint(source, dest, precision, name=name or source.resolve().name, progress=progress)
    _packed(packed)


@models.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """List installed models, and the known ones that can be pulled."""
    found = [_row(name, path) for name, path in installed(configure().models_dir or None)]
    found += [
        {"name": name, "kind": "generator", "precision": "gguf", "bytes": path.stat().st_size, "path": str(path)}
        for name, path in installed_generators(configure().models_dir or None)
    ]
    rows, damaged = ([row for row in found if ("error" in row) is wrong] for wrong in (False, True))
    present = {row["name"] for row in found}
    missing = [
        {"name": name, "kind": known.kind, "source": known.source, "licence": known.licence}
        for name, known in KNOWN.items()
        if name not in present and known.source != "bundled"
    ]
    if as_json:
        click.echo(json.dumps({"installed": rows, "damaged": damaged, "available": missing}))
        return
    for row in rows:
        size = format_size(row["bytes"])
        click.echo(f"{row['name']:28} {row['kind']:9} {row['precision']:5} {size:>8}  {row['path']}")
    for row in damaged:
        click.echo(f"{row['name']:28} damaged: {row['error']}")
    for entry in missing:
        click.echo(
            f"{entry['name']:28} {entry['kind']:9} {entry['licence']}, not here: edge models pull {entry['name']}"
        )


@models.command()
@click.argument("model")
@click.option("--verify", is_flag=True, help="Read everything and compare all checksums.")
@json_option
def show(model: str, verify: bool, as_json: bool) -> None:
    """Describe MODEL: architecture, size, origin, calibration."""
    if (known := KNOWN.get(model)) is not None and known.kind == "generator":
        _show_generator(model, known, verify, as_json)
        return
    with resolve(model, directory=configure().models_dir or None) as packed:
        if verify:
            packed.verify()
            reader.verify(packed)
        calibration, damage = _calibration(packed)
        if verify and damage is not None:
            raise CorruptBlock(damage)
        spec = packed.spec
        facts: dict[str, Any] = {
            "name": packed.name,
            "kind": packed.kind,
            "path": str(packed.path),
            "architecture": spec.architecture,
            "parameters": spec.parameters(),
            "layers": spec.layers,
            "hidden": spec.layer.hidden,
            "precision": spec.layer.precision,
            "bytes": packed.nbytes,
            "layer_bytes": packed.file.nbytes(packed.layer_blocks[0]),
            "max_tokens": spec.max_tokens,
            "head": spec.head.kind,
            "fingerprint": packed.fingerprint,
            "origin": packed.origin,
        }
    points = [] if calibration is None else calibration.points
    if as_json:
        rows = [{name: getattr(p, name) for name in p.__dataclass_fields__} for p in points]
        facts["calibration"] = None if calibration is None else {"lens_layers": calibration.lens_layers, "points": rows}
        facts["calibration_damage"] = damage
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        shown = format_size(value) if name in ("bytes", "layer_bytes") else value
        click.echo(f"{name:13} {shown if not isinstance(shown, int) else f'{shown:,}'}")
    if calibration is not None:
        _print_points(calibration)
    if damage is not None:
        click.echo(f"{'calibration':13} damaged: {damage}")
    if verify:
        click.echo("every checksum is right")


@models.command()
@click.argument("model")
@click.option(
    "--queries", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON Lines."
)
@click.option(
    "--target", type=float, default=TARGET, show_default=True, help="Share of full depth's results that must be found."
)
@click.option("-k", "--top-k", "ks", type=int, multiple=True, default=(1, 3, 5, 10, 20), show_default=True)
@click.option("--embedder", help="Also fit the probabilities of results, with this embedder beside MODEL.")
@setup_options()
def calibrate(
    model: str, queries: Path, target: float, ks: tuple[int, ...], embedder: str | None, setup: Setup
) -> None:
    """Find the margins of pruning that keep the results of full depth, and store it with MODEL.

    Each line of the queries' file is {"query": ..., "docs": [...]} with at least 20 documents, best in a retriever's
    order, and optionally "scores": the retriever's for each, and "relevant": positions of the relevant ones, or
    "grades": one for each document (as the benchmark `search-quality` writes them). A query with grades and nothing
    relevant is left out. With "domain", where a query comes from, the margins have to keep the target in every domain.

    The number of a result depends on the embedder, too. With --embedder it is fitted for both models: each query is
    asked with its relevant documents among all documents of the file, and without them.
    """
    from edge.runtimes.calibration import calibrate as measure
    from edge.runtimes.reranker import Reranker

    examples = _examples(queries)
    config = setup.config(reranker=model)
    with Reranker(config=config, threshold="inf") as reranker:
        with ProgressBar(" queries", "calibrating") as progress:
            found = measure(reranker, examples, ks=ks, target=target, progress=progress)
        found.save(reranker.model.path)
    _print_points(found)
    if embedder is not None:
        _fit_refusal(examples, setup.config(reranker=model, embedder=embedder))


def _fit_refusal(examples: list[Any], config: Config) -> None:
    from tempfile import TemporaryDirectory

    from edge.apps.assistant.reading import fitted_pair
    from edge.apps.collection.collection import Collection
    from edge.models.evidence import save

    texts = {text: str(number) for number, text in enumerate(dict.fromkeys(doc for e in examples for doc in e.docs))}
    asked = [(e.query, frozenset(texts[e.docs[i]] for i in e.relevant)) for e in examples if e.relevant]
    with TemporaryDirectory() as folder, Collection(folder, config=config) as collection:
        collection.add(list(texts), ids=list(texts.values()))
        with ProgressBar(" queries", "fitting refusal") as progress:
            fitted = fitted_pair(collection, asked, progress)
        save(collection.reranker.model, fitted)
    click.echo(f"fitted the probabilities of {' and '.join(f'`{name}`' for name in fitted)}")


def _row(name: str, path: Path) -> dict[str, Any]:
    """A model that cannot be opened has only its name, its path and the error."""
    try:
        with PackedModel.open(path) as model:
            precision = model.spec.layer.precision
            return {"name": name, "kind": model.kind, "precision": precision, "bytes": model.nbytes, "path": str(path)}
    except EdgeError as error:
        return {"name": name, "path": str(path), "error": str(error)}


def _show_generator(name: str, known: KnownModel, verify: bool, as_json: bool) -> None:
    from edge.models.gguf_file import GGUFFile

    path = find_generator(name, configure().models_dir or None)
    if verify and file_sha256(path) != known.kept:
        raise CorruptBlock(f"{path} is not the pinned file of {name}: `edge models pull {name}` fetches it anew")
    header = GGUFFile.open(path)
    facts = {
        "name": name, "kind": known.kind, "path": str(path), "architecture": header.architecture,
        "bytes": header.nbytes, "max_tokens": header.trained_context, "licence": known.licence,
        "origin": known.location,
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(facts))
        return
    for fact, value in facts.items():
        click.echo(f"{fact:13} {format_size(header.nbytes) if fact == 'bytes' else value}")
    if verify:
        click.echo("the checksum is the pinned one")


def _licence(known: KnownModel | None) -> None:
    if known is not None and known.licence:
        click.echo(f"licence of the weights: {known.licence}")


def _calibration(packed: PackedModel) -> tuple[Calibration | None, str | None]:
    try:
        return Calibration.load(packed.path, packed.fingerprint), None
    except CorruptBlock as error:
        return None, str(error)


def _examples(path: Path) -> list[Any]:
    from edge.runtimes.calibration import Example

    examples = []
    for number, line in enumerate(read_input(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            relevant = value.get("relevant")
            if "grades" in value:
                relevant = [i for i, grade in enumerate(value["grades"]) if grade > 0]
                if not relevant:
                    continue
            chosen = None if relevant is None else frozenset(int(i) for i in relevant)
            docs, scores = [str(doc) for doc in value["docs"]], value.get("scores")
            retrieved = scores is None or [float(score) for score in scores]
            domain = str(value.get("domain", ""))
            examples.append(Example(str(value["query"]), docs, chosen, retrieved, domain))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f'{path}, line {number}: needs "query" and "docs" ({error})') from None
    return examples


def _print_points(calibration: Calibration) -> None:
    probed = ", ".join(map(str, calibration.lens_layers))
    scorer = f"a lens after layers {probed}, else the head" if probed else "the head"
    click.echo(f"calibrated on {calibration.queries} queries of {calibration.candidates} texts, scores by {scorer}")
    click.echo(f"  error of the scores, whose deviation is {calibration.spread:.2f}, unordered and retrieved:")
    for layer, errors in enumerate(zip(calibration.alone.errors[:-1], calibration.blended.errors[:-1], strict=True)):
        shown = ", ".join(f"{error:.2f}" if math.isfinite(error) else "not used" for error in errors)
        click.echo(f"    after layer {layer}: {shown}" if layer else f"    before the first layer: {shown}")
    for order, forecast in (("unordered", calibration.alone), ("retrieved", calibration.blended)):
        for mode, margins in forecast.margins.items():
            shown = ", ".join(f"{margin:.2f} for {share:.0%}" for share, margin in margins)
            click.echo(f"  {mode:6} {order}: candidates are dropped this many deviations behind, by share: {shown}")
    for point in calibration.points:
        kept = f"precision {point.precision:.3f} of {point.full_precision:.3f}, overlap {point.overlap:.3f}"
        order = "retrieved" if point.retrieved else "unordered"
        case = f"{point.mode:6} {order:9} {point.k:3d} of {point.candidates:<3d}"
        click.echo(f"  {case} {kept}, {point.evaluations:.0%} of the work")


def _packed(packed: PackedModel) -> None:
    with packed:
        size = format_size(packed.nbytes)
        click.echo(f"{packed.name}: {packed.kind}, {packed.spec.layer.precision}, {size}, in {packed.path}")
