"""Files and clients that were made to harm, against one command or server with a limit."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import ClassVar

from campaign.base import HELD, REFUSED, Attack, Case, Outcome, failed
from campaign.program import EDGE, Finished, Home, Snapshot
from campaign.server import Running, post

_SAYS = re.compile(r"^(edge: |Error: |Usage: )", re.MULTILINE)
LIMITS = (160 * 10**6, 200 * 10**6, 300 * 10**6)
"""Of the commands, in bytes."""

_FINE = {
    "river.md": "The river floods in spring.\n",
    "sub/bread.md": "Bread needs time.\n",
    "sub/deep/ice.md": "Ice.\n",
}


_MOST = 2 * 10**9
"""A refusal that names a larger limit is not tried with it, because the machine may not have so much."""


class Hostile(Attack):
    """A command on hostile files, at one of a few limits."""

    quick: ClassVar[int] = 2
    command: Sequence[str] = EDGE
    patience: ClassVar[float] = 600.0

    def prepare(self, place: Path) -> None:
        self.home = Home(place / "home").with_tiny_models()

    def judged(self, limit: int, *arguments: str, environment: Mapping[str, str] | None = None) -> Outcome:
        """The outcome of a command within `limit` bytes: whether it broke a promise, and whether it refused its input
        in words. A limit that a refusal names must be enough."""
        done = self._limited(limit, arguments, environment)
        if (fault := done.fault(limit)) is not None:
            return failed(fault).at(done.peak, limit)
        if (named := done.named) is not None and named < _MOST:
            again = self._limited(named, arguments, environment)
            if (fault := again.fault(named)) is not None:
                return failed(fault).at(again.peak, named)
            if again.named is not None:
                return failed(f"{named:,} bytes were named, and are not enough: {again}").at(again.peak, named)
        if done.code == 2 and not _SAYS.search(done.err):
            return failed(f"no sentence: {done}").at(done.peak, limit)
        return (REFUSED if done.code == 2 else HELD).at(done.peak, limit)

    def _limited(self, limit: int, arguments: Sequence[str], environment: Mapping[str, str] | None) -> Finished:
        return self.home.edge(
            *arguments, sampled=True, patience=self.patience, command=self.command,
            environment={"EDGE_MEMORY": f"{limit}B", **(environment or {})},
        )  # fmt: skip


def _indexed(home: Home) -> set[str]:
    return {Path(file["path"]).name for file in json.loads(home.look("list", "--json").out)["files"]}


class IgnoreFiles(Hostile):
    name = "ignore-files"
    promise = "no ignore file exceeds the limit, takes long, or loses a file that it does not name"

    def prepare(self, place: Path) -> None:
        super().prepare(place)
        for name, text in _FINE.items():
            path = self.home.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        made = self.home.edge("index", ".")
        assert made.code == 0, made
        self.files = _indexed(self.home)
        assert len(self.files) == len(_FINE), self.files

    def cases(self, chance: random.Random) -> Iterator[Case]:
        pieces = (
            "*a",
            "**/",
            "a/",
            "[a-b]",
            "[!x]",
            "?",
            "a" * 60 + "b*",
            "\\x",
            "[",
            "[[:alpha:]]",
            "{x}",
            "\xff",
            "!",
        )
        while True:
            piece, other = chance.choices(pieces, k=2)
            repeated, lines = chance.choice((1, 10, 100, 1000)), chance.choice((1, 100, 3000, 100_000))
            where = [chance.choice(("", "sub", "sub/deep")) for _ in range(chance.choice((1, 2)))]
            name = chance.choice((".gitignore", ".edgeignore"))
            label = f"{lines:,} lines of {repeated:,} x {piece[:9]!a}{other[:9]!a} in {where}"
            yield Case(
                label, ((piece * repeated + other + "zz").encode("latin-1"), lines, where, name, chance.choice(LIMITS))
            )

    def attempt(self, case: Case, place: Path) -> Outcome:
        line, lines, where, name, limit = case.data
        files = {self.home.work / folder / name for folder in where}
        try:
            for path in files:
                with path.open("wb") as file:
                    for _ in range(min(lines, 4_000_000 // (len(line) + 1) + 1)):
                        file.write(line + b"\n")
            outcome = self.judged(limit, "index", ".")
            kept = _indexed(self.home)
            if outcome.held and kept != self.files:  # no pattern of the cases names a file
                return failed(f"lost {self.files - kept} in the index")
            return outcome
        finally:
            for path in files:
                path.unlink(missing_ok=True)


_VALUES = (
    "x'00ff'", "'[1]'", "NULL", "-9223372036854775808", "9e999", "'" + "[" * 90_000 + "'", "''", "char(27)||'[2J'",
    "CAST(zeroblob(3000000) AS TEXT)", "zeroblob(20000000)", "CAST(zeroblob(200000000) AS TEXT)",
    "'{\"a\": [' || replace(hex(zeroblob(1000000)), '00', '[],') || '1]}'",
)  # fmt: skip


class ForeignRows(Hostile):
    name = "foreign-rows"
    promise = "no row of a foreign database exceeds the limit, ends a command unexpectedly, or stops the next one"

    def prepare(self, place: Path) -> None:
        super().prepare(place)
        (self.home.work / "docs").mkdir()
        for number in range(30):
            text = f"The river {number} floods in spring.\n" * 9
            (self.home.work / "docs" / f"{number}.md").write_text(text, encoding="utf-8")
        for arguments in (["index", "docs"], *(["memory", "add", f"I like river {n}"] for n in range(4))):
            made = self.home.edge(*arguments)
            assert made.code == 0, made
        self.kept = Snapshot(self.home.path / ".local")

    def cases(self, chance: random.Random) -> Iterator[Case]:
        import apsw

        names = {path.name: path for path in (self.home.path / ".local").rglob("*.db")}
        verbs = {
            "edge.db": (["search", "river"], ["status"], ["list"], ["index"], ["ask", "when does the river flood"],
                        ["compact"], ["check", "--read-data"], ["show", "docs/1.md"]),
            "memory.db": (["memory", "search", "river"], ["memory", "list"], ["memory", "status"], ["memory", "export"],
                          ["memory", "add", "I like ice"], ["memory", "check", "--read-data"]),
        }  # fmt: skip
        columns = []
        for name, path in names.items():
            with closing(apsw.Connection(str(path))) as db:
                for (table,) in db.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
                ):
                    columns += [(name, table, row[1]) for row in db.execute(f"PRAGMA table_info({table})")]
        while True:
            name, table, column = chance.choice(columns)
            value, many = chance.choice(_VALUES), chance.choice((1, 1000))
            verb = chance.choice(verbs[name])
            label = f"{name} {table}.{column} = {value[:30]} in {many} rows, {' '.join(verb)}"
            yield Case(label, (names[name], table, column, value, many, verb, chance.choice(LIMITS)))

    def attempt(self, case: Case, place: Path) -> Outcome:
        import apsw

        from edge.apps.memory.records import SEAL
        from edge.apps.store.rows import register

        path, table, column, value, many, verb, limit = case.data
        self.kept.restore()
        with closing(apsw.Connection(str(path))) as db, suppress(apsw.Error):
            register(db)
            db.execute("PRAGMA foreign_keys = OFF")
            db.execute(
                f"UPDATE OR IGNORE {table} SET {column} = {value} "
                f"WHERE rowid IN (SELECT rowid FROM {table} LIMIT {many})"
            )
            if path.name == "memory.db" and table in SEAL:
                db.execute(SEAL[table]).fetchall()
        return self.judged(limit, *verb)


_TEMPLATES = (
    "{{'%0999999999d'%5}}",
    "{{'x'*250000000}}",
    "{{ 'x'.ljust(900000000) }}",
    "{{ (1,)*90000000 }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 9**9**9 }}",
    "{{ range(9**9)|list }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages|string * 9999999 }}",
    "{{ messages|tojson(indent=999999999) }}",
    "{{ ('x'*99999)|indent(99999)|indent(99999) }}",
    "{{ 'x'|center(2**40) }}",
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ '\\x1b[2J' }}",
    "{{ strftime_now('%9999999d') }}",
    "{{ ('x,'*9999999).split(',') }}",
    "{% include '/etc/passwd' %}",
    "{{ 'x'|wordwrap(1)|urlize }}",
    "{{ lipsum(9999, min=99, max=999) }}",
    "{{ dict.fromkeys(range(9**9)) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ raise_exception('x' * 9999999) }}",
    "{{" * 50_000,
)


class Templates(Hostile):
    name = "templates"
    promise = "no chat template of a model file exceeds the limit, runs without end, or reads anything"

    def prepare(self, place: Path) -> None:
        import pytest

        pytest.importorskip("llama_cpp")
        super().prepare(place)
        (self.home.work / "river.md").write_text(_FINE["river.md"], encoding="utf-8")
        made = self.home.edge("index", "river.md")
        assert made.code == 0, made

    def cases(self, chance: random.Random) -> Iterator[Case]:
        from making.random_gguf import CHATML

        while True:
            template = chance.choice(_TEMPLATES)
            for _ in range(chance.choice((0, 1, 2))):
                other = chance.choice((*_TEMPLATES, CHATML))
                template = chance.choice(
                    (template + other, "{% if messages|length > 1 %}" + template + "{% endif %}" + other)
                )
            yield Case(template[:60], (template, chance.choice(LIMITS)))

    def attempt(self, case: Case, place: Path) -> Outcome:
        from dataclasses import replace

        from making.random_gguf import SHAPES

        template, limit = case.data
        model = self.home.work / "model.gguf"
        replace(SHAPES["tiny"], template=template).write(model)
        return self.judged(limit, "ask", "when does the river flood", "--llm", str(model))


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _onnx(kind: str, chance: random.Random) -> bytes:
    """A hostile ONNX file, as the bytes of its protocol buffers."""
    from onnx import TensorProto, helper

    if kind == "noise":
        return chance.randbytes(chance.choice((0, 9, 90_000)))
    if kind == "deep":
        data = b"x"
        for _ in range(3_000):
            data = _field(7, _field(1, _field(5, data)))
        return data
    if kind == "long":
        return b"\x08\x08\x3a" + _varint(1 << 40) + b"x"
    value = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    tensors = []
    if kind == "external":
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(
            key="location", value=chance.choice(("../../../etc/passwd", "/dev/zero", "/etc/passwd"))
        )
        tensors = [tensor]
    elif kind == "huge":
        tensors = [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 31, 1 << 31], raw_data=b"x" * 100)]
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value, value, initializer=tensors)
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    if kind == "loop":
        nodes = [helper.make_node("Loop", ["x", ""], ["y"], body=body)]
    graph = helper.make_graph(nodes * chance.choice((1, 5_000)), "g", value, value, initializer=tensors)
    return bytes(helper.make_model(graph).SerializeToString())


class ModelFiles(Hostile):
    name = "model-files"
    promise = "no model file, cut off or made by somebody, exceeds the limit or ends a command unexpectedly"

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            kind = chance.choice(("noise", "deep", "long", "external", "huge", "loop", "cut", "cut", "changed"))
            way = chance.choice(("folder", "file", "document"))
            yield Case(f"{kind} as a {way}", (kind, way, chance.randrange(2**31), chance.choice(LIMITS)))

    def attempt(self, case: Case, place: Path) -> Outcome:
        kind, way, seed, limit = case.data
        chance = random.Random(seed)
        folder = self.home.models / "theirs"
        shutil.rmtree(folder, ignore_errors=True)
        tiny = self.home.models / chance.choice(("tiny", "tiny-embedder"))
        shutil.copytree(tiny, folder)
        if kind in ("cut", "changed"):
            path = chance.choice(sorted(file for file in folder.rglob("*") if file.is_file()))
            data = bytearray(path.read_bytes())
            if kind == "cut":
                del data[chance.randrange(len(data) + 1) :]
            else:
                for _ in range(chance.choice((1, 9, 99))):
                    data[chance.randrange(len(data))] = chance.randrange(256)
            path.write_bytes(data)
        else:
            for file in [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
                file.unlink()
            name = chance.choice(("model.onnx", "onnx/model.onnx", "model.safetensors"))
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(_onnx(kind, chance))
        named = {"folder": str(folder), "file": str(next(folder.rglob("*.onnx"), folder)), "document": ""}[way]
        (self.home.work / "docs.txt").write_text("The river floods.\nBread needs time.\n", encoding="utf-8")
        if not named:
            return self.judged(limit, "index", str(folder))
        verb = ["embed", "--docs", "docs.txt", "--out", "out.npy", "--model", named]
        if tiny.name == "tiny":
            verb = ["rerank", "river", "--docs", "docs.txt", "--model", named]
        return self.judged(limit, *verb)


def _png(width: int, height: int, data: bytes = b"", *chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = b"".join(chunk(*one) for one in chunks)
    return b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _zeros(megabytes: int) -> bytes:
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(10**6)) for _ in range(megabytes)) + packer.flush()


def _saved(kind: str, size: tuple[int, int], **options: object) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.effect_noise(size, 90).save(buffer, kind, **options)
    return buffer.getvalue()


def _animated(kind: str, frames: int) -> bytes:
    from PIL import Image

    images = [Image.effect_noise((300, 200), 90) for _ in range(frames)]
    return _saved_all(images, kind)


def _saved_all(images: list, kind: str) -> bytes:  # type: ignore[type-arg]
    buffer = io.BytesIO()
    images[0].save(buffer, kind, save_all=True, append_images=images[1:])
    return buffer.getvalue()


def _lines() -> bytes:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (1700, 1700), "white")
    draw = ImageDraw.Draw(image)
    for top in range(0, 1700, 14):
        draw.text((0, top), "the river floods in spring " * 12, fill="black")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


_PICTURES: dict[str, Callable[[], bytes]] = {
    "bomb.png": lambda: _png(20_000, 2_000, _zeros(120)),
    "wide.png": lambda: _png(2**31 - 1, 1, _zeros(1)),
    "many.png": lambda: _png(65_000, 65_000, _zeros(1)),
    "line.png": lambda: _png(3_000_000, 13, _zeros(117)),
    "text.png": lambda: _png(100, 100, _zeros(1), (b"zTXt", b"a\0\0" + _zeros(100))),
    "profile.png": lambda: _png(100, 100, _zeros(1), (b"iCCP", b"a\0\0" + _zeros(100))),
    "chunks.png": lambda: _png(100, 100, _zeros(1), *[(b"tEXt", b"a\0b")] * 100_000),
    "lines.png": _lines,
    "noise.png": lambda: _saved("PNG", (1700, 1700)),
    "noise.jpg": lambda: _saved("JPEG", (6000, 6000)),
    "progressive.jpg": lambda: _saved("JPEG", (4000, 4000), progressive=True),
    "exif.jpg": lambda: _saved(
        "JPEG", (300, 300), exif=b"Exif\0\0MM\0*\0\0\0\x08" + b"\xff\xff" + bytes(range(256)) * 200
    ),
    "frames.gif": lambda: _animated("GIF", 300),
    "frames.webp": lambda: _animated("WEBP", 60),
    "pages.tiff": lambda: _animated("TIFF", 200),
    "large.webp": lambda: _saved("WEBP", (6000, 6000)),
    "large.bmp": lambda: _saved("BMP", (6000, 6000)),
    "tile.tiff": lambda: _saved("TIFF", (5000, 5000), compression="tiff_lzw"),
    "head.gif": lambda: b"GIF89a" + b"\xff\xff\xff\xff\xf7\0\0" + bytes(10**6),
}


class Pictures(Hostile):
    name = "pictures"
    promise = "no picture exceeds the limit, takes longer than its time, or stops the next file from being read"

    def prepare(self, place: Path) -> None:
        import pytest

        pytest.importorskip("PIL")
        super().prepare(place)
        self.made: dict[str, bytes] = {}

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            names = sorted(_PICTURES)
            chance.shuffle(names)
            yield from (Case(name, (name, 0, chance.choice(LIMITS))) for name in names)
            yield from (Case(f"{name} damaged", (name, chance.randrange(1, 2**31), LIMITS[-1])) for name in names)

    def attempt(self, case: Case, place: Path) -> Outcome:
        name, seed, limit = case.data
        data = bytearray(self.made.setdefault(name, _PICTURES[name]()))
        chance = random.Random(seed)
        for _ in range(chance.choice((1, 9)) if seed else 0):
            data[chance.randrange(len(data))] = chance.randrange(256)
        folder = self.home.work / "pictures"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / name).write_bytes(data)
        (folder / "zz.md").write_text(_FINE["river.md"], encoding="utf-8")
        outcome = self.judged(limit, "index", str(folder))
        if outcome.held and not outcome.refused and "zz.md" not in self.home.look("list").out:
            return failed("the next file is lost")
        return outcome


class SlowClients(Attack):
    name = "slow-clients"
    promise = "clients that send or read without end cost no more than the limit, and others are served"
    quick = 1

    def prepare(self, place: Path) -> None:
        import pytest

        pytest.importorskip("uvicorn")
        self.home = Home(place / "home").with_tiny_models()
        (self.home.work / "river.md").write_text(_FINE["river.md"], encoding="utf-8")
        made = self.home.edge("index", "river.md", "-c", "col")
        assert made.code == 0, made

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            kind = chance.choice(sorted(_SLOW))
            number, limit = chance.choice((20, 200, 900)), chance.choice(LIMITS)
            yield Case(
                f"{number} clients, slow in {kind}, {limit:,} bytes", (kind, number, limit, chance.randrange(2**31))
            )

    def attempt(self, case: Case, place: Path) -> Outcome:
        kind, number, limit, seed = case.data
        memory = place / f"memory-{seed}"
        with Running(self.home, limit, memory) as running, ExitStack() as stack:
            if running.port == 0:
                return REFUSED if "limit" in running.said else failed(f"the server did not start: {running.said}")

            def join() -> socket.socket | None:
                with suppress(OSError):
                    raw = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=0.1))
                    raw.sendall(_SLOW[kind])
                    raw.setblocking(False)
                    return raw
                return None

            clients = [join() for _ in range(number)]
            told, begun = Counter[int](), time.monotonic()
            while (seconds := time.monotonic() - begun) < _SIEGE_S or (told.keys() <= {429, 503} and seconds < _FAIR_S):
                until = time.monotonic() + 1
                for place_, raw in enumerate(clients):
                    if time.monotonic() > until:
                        break
                    if kind == "asking":
                        clients[place_] = _go_on(raw) or join()
                    elif raw is not None:
                        with suppress(OSError):
                            raw.send(_MORE.get(kind, b""))
                body = json.dumps({"query": "river", "top_k": 3}).encode()
                try:
                    status, answer = post(running.port, "/v1/search", body, timeout=_FAIR_S)
                except OSError as error:
                    return failed(f"a client that behaves is not served: {error}")
                if status not in (200, 413, 429, 503):
                    return failed(f"a client that behaves is answered {status}: {answer[:200]!r}")
                told[status] += 1
                time.sleep(0.3)
            if told.keys() <= {429, 503}:
                return failed(f"a client that behaves was told {dict(told)} in {seconds:.0f} s")
            stack.close()
            time.sleep(0.5)
            status, answer = post(running.port, "/v1/search", body, timeout=_FAIR_S)
            if status != 200:
                return failed(f"after they are gone, a search is answered {status}: {answer[:200]!r}")
            code, errors = running.end()
        outcome = HELD if told[200] else REFUSED
        if running.peak > limit:
            outcome = failed(f"took {running.peak:,} bytes: {running.peak / limit:.3f} times the limit")
        elif code != 0 or errors.strip():
            outcome = failed(f"ended with {code} and said {errors[-300:]!r}")
        return outcome.at(running.peak, limit)


_SIEGE_S, _FAIR_S = 12.0, 120.0
"""How long the clients stay, and how long until the one that behaves must have had an answer."""


def _go_on(raw: socket.socket | None) -> socket.socket | None:
    """Reads what has come, and asks again; None if the connection has ended."""
    if raw is None:
        return None
    try:
        if not raw.recv(1 << 20):
            return None
        raw.send(_SLOW["asking"])
    except BlockingIOError:
        pass
    except OSError:
        return None
    return raw


_BODY = json.dumps({"input": ["river"] * 3000}).encode()
_HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_SLOW = {
    "head": b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\n",
    "body": _HEAD + b"Content-Length: 900000\r\n\r\n{",
    "chunks": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    "reading": _HEAD + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY,
    "asking": _HEAD + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY,
    "silent": b"",
    "pipelined": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200,
    "mcp": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
}  # fmt: skip
"""The first bytes of a slow client, and those that it sends from time to time."""

_MORE = {"head": b"X-A: " + b"b" * 900 + b"\r\n", "body": b" " * 2000, "chunks": b"1\r\n \r\n" * 50}
