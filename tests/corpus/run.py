"""Reads public test files with the program, and compares the words with those of independent readers.

    python tests/corpus/run.py FOLDER --json report.json

FOLDER gets a bare clone of each project of `sources.txt` (or has them, as `owner+name`), and copies of their files. It
needs git, poppler-utils, pandoc, and python-docx, python-pptx and openpyxl. Nothing of it belongs into a commit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from readers import SUFFIXES, at, invented, others, recall, words

from edge.apps.documents.base import Skipped
from edge.apps.documents.extraction import Extractor
from edge.budget import MemoryBudget
from edge.errors import EdgeError

LARGEST = 4_000_000
"""Bytes of a file."""

OFFICE = frozenset({"docx", "docm", "pptx", "xlsx", "xlsm", "odt", "epub", "fb2"})
LEAST_WORDS = 20
"""A reader that finds fewer words in a file is no measure."""


def repositories(folder: Path) -> Iterator[Path]:
    """The bare repository of each project; those that are missing are cloned."""
    for line in (Path(__file__).parent / "sources.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            place = folder / line.replace("/", "+")
            if not place.exists():
                url = f"https://github.com/{line}"
                subprocess.run(["git", "clone", "--quiet", "--bare", "--depth=1", url, place], check=True)
            yield place / "repo" if (place / "repo").exists() else place


def files(folder: Path, suffixes: Set[str] = SUFFIXES) -> list[Path]:
    """Copies of the test files, each content once, by the number of its content and its suffix."""
    target = folder / "files"
    target.mkdir(exist_ok=True)
    for repository in repositories(folder):
        git = ["git", "-C", str(repository)]
        listed = subprocess.run([*git, "ls-tree", "-r", "-l", "-z", "HEAD"], capture_output=True, check=True).stdout
        for entry in filter(None, listed.decode("utf-8", "replace").split("\0")):
            about, _, name = entry.partition("\t")
            _, kind, number, size = about.split()
            suffix = name.rpartition(".")[2].lower()
            if kind != "blob" or suffix not in suffixes or not (size.isdecimal() and 0 < int(size) <= LARGEST):
                continue
            copy = target / f"{number}.{suffix}"
            if not copy.exists():
                done = subprocess.run([*git, "cat-file", "blob", number], capture_output=True, check=False)
                if done.returncode == 0:
                    copy.write_bytes(done.stdout)
    return sorted(path for path in target.iterdir() if path.suffix[1:] in suffixes)


def read(extractor: Extractor, path: Path) -> dict[str, Any]:
    """What the program and the other readers find in a file."""
    started = time.perf_counter()
    result: dict[str, Any] = {"file": path.name, "kind": path.suffix[1:]}
    try:
        extracted = extractor.extract(path)
    except Skipped as reason:
        result |= {"outcome": f"skipped: {reason.reason.value}", "said": str(reason)}
    except EdgeError as error:
        result |= {"outcome": "failed", "said": str(error)}
    except Exception as error:
        result |= {"outcome": "traceback", "said": repr(error)}
    result["seconds"] = time.perf_counter() - started
    if "outcome" in result:
        return result
    title = "" if extracted.title == path.name else extracted.title
    ours = words("\n".join([title, *(chunk.text for chunk in extracted.chunks)]))
    theirs = others(path)
    chunk = extracted.chunks[len(extracted.chunks) // 2]
    with contextlib.suppress(subprocess.SubprocessError):
        there = at(path, chunk.line_start, chunk.line_end, chunk.page)
        if there is not None and words(chunk.text).total() >= LEAST_WORDS:
            result["placed"] = recall(there, words(chunk.text))
    result |= {"outcome": "read", "said": extracted.warning, "words": ours.total()}
    if len(theirs) > 1 and theirs[0].total() >= LEAST_WORDS:
        best = max(recall(ours, one) for one in theirs[:-1] if one.total() >= theirs[0].total() / 4)
        result |= {"recall": best, "invented": invented(ours, theirs)}
    return result


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all files, by kind."""
    kinds: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        kinds[result["kind"]].append(result)
        kinds["office and books" if result["kind"] in OFFICE else "others"].append(result)
    found: dict[str, Any] = {}
    for kind, some in sorted(kinds.items()):
        measured = [result for result in some if "recall" in result]
        found[kind] = {
            "files": len(some), **Counter(result["outcome"].partition(":")[0] for result in some),
            "measured": len(measured), "seconds": round(sum(result["seconds"] for result in some), 1),
        }  # fmt: skip
        if measured:
            recalls = [result["recall"] for result in measured]
            for least in (0.95, 0.97):
                found[kind][f"recall >= {least}"] = sum(r >= least for r in recalls) / len(recalls)
            found[kind]["invented <= 0.03"] = sum(r["invented"] <= 0.03 for r in measured) / len(measured)
            found[kind]["median invented"] = statistics.median(r["invented"] for r in measured)
    placed = [result["placed"] for result in results if "placed" in result]
    memory = [result for result in results if "memory" in result["said"]]
    positions = {"files": len(placed), "right": sum(share >= 0.9 for share in placed)}
    return {
        "kinds": found,
        "positions": positions,
        "about memory": [(result["file"], result["said"]) for result in memory],
    }


def main() -> int:
    """Runs the comparison; the exit code tells whether a traceback was seen."""
    parser = argparse.ArgumentParser(description="Reads public test files, and compares the words with other readers.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="every file's figures; a file of an earlier run is continued")
    parser.add_argument("--every", type=int, default=1, help="only every N-th file")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        results += json.loads(options.json.read_text())["files"]
    known = {result["file"] for result in results}
    chosen = [path for path in files(options.folder)[:: options.every] if path.name not in known]
    with Extractor(budget=MemoryBudget(300 * 10**6)) as extractor:
        for number, path in enumerate(chosen, 1):
            results.append(read(extractor, path))
            if number % 50 == 0:
                print(f"{number} of {len(chosen)}", file=sys.stderr, flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps({"files": results, **summary(results)}, indent=1))
    document = summary(results)
    document["peak of workers"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if options.json is not None:
        options.json.write_text(json.dumps({"files": results, **document}, indent=1))
    print(json.dumps(document, indent=1))
    return int(any(result["outcome"] == "traceback" for result in results))


if __name__ == "__main__":
    sys.exit(main())
