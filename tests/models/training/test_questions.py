"""Queries that a model writes: prompts, answers, and which passage each belongs to."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from edge.models.training import questions  # noqa: E402
from edge.models.training.documents import Document, write  # noqa: E402
from edge.models.training.wording import Passage, passages  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905
ANSWER = "how deep is it?\nSearch: lake depth\nNeed: I want to know about lakes.\n\nPassage: another"


def text(seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(" ".join(rng.choices(WORDS, k=15)).capitalize() + "." for _ in range(12))


DOCUMENTS = [Document(domain, f"{domain} {n}", (("", text(n)),)) for domain in ("one", "two") for n in range(6)]


def language_model(directory: Path) -> Path:
    """A LLaMA of a few thousand random weights whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: n for n, c in enumerate([*signs, "<end>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(directory)
    config = transformers.LlamaConfig(
        vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


class Scripted:
    """Stands for the model: it goes on with the given text, a token at a time, until all rows are said to be done."""

    def __init__(self, tokenizer: Any, answers: list[str]) -> None:
        self.device = torch.device("cpu")
        self._going_on = [tokenizer.encode(answer) for answer in answers]
        self.lengths: list[int] = []

    def generate(self, input_ids: Any, stopping_criteria: Any, pad_token_id: int, **_: object) -> Any:
        ids, done = input_ids, torch.zeros(len(input_ids), dtype=torch.bool)
        self.lengths = [0] * len(ids)
        for place in range(max(map(len, self._going_on))):
            column = []
            for row, going_on in enumerate(self._going_on):
                ended = bool(done[row]) or place >= len(going_on)
                column.append(pad_token_id if ended else going_on[place])
                self.lengths[row] += not ended
            ids = torch.cat([ids, torch.tensor(column)[:, None]], dim=1)
            done |= stopping_criteria(ids, None)
        return ids


def test_answers_are_read_field_by_field_and_nonsense_is_left_out() -> None:
    assert questions.parsed(ANSWER) == {
        "question": "how deep is it?",
        "search": "lake depth",
        "need": "I want to know about lakes.",
    }
    assert questions.parsed("") == {}
    assert questions.parsed("lake\nSearch: lake lake lake lake lake lake lake\nOther: two words") == {}
    assert questions.parsed("\nSearch:   two    words ") == {"search": "two words"}
    long = Passage(0, 0, "title", "heading", " ".join(["word"] * 400), False)
    shown = questions.prompt(long)  # of 150 words at most
    assert shown.endswith("word\nQuestion:")
    assert shown.rpartition("Passage: ")[2].removesuffix("\nQuestion:").split() == ["heading"] + ["word"] * 149
    assert shown.count("Passage: ") == shown.count("Question:") == 3


def test_writing_stops_at_an_empty_line_of_each_row(tmp_path: Path) -> None:
    tokenizer, _ = questions.model_of(language_model(tmp_path), None, torch.device("cpu"))
    short = "what is it?\n\nPassage: more"
    model = Scripted(tokenizer, [ANSWER, short])
    found = questions.write(tokenizer, model, ["a long prompt\nQuestion:", "short\nQuestion:"])
    assert found == [questions.parsed(ANSWER), {"question": "what is it?"}]
    assert model.lengths == [ANSWER.index("\n\n") + 2, short.index("\n\n") + 2]


def test_parts_share_the_work_of_all_domains(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    write(path, DOCUMENTS)
    whole = list(questions.chosen([path], 3, 16, 0, 1))
    parts = [list(questions.chosen([path], 3, 16, part, 2)) for part in (0, 1)]
    assert sorted(parts[0] + parts[1], key=str) == sorted(whole, key=str)
    assert abs(len(parts[0]) - len(parts[1])) <= 2
    assert {domain for domain, _ in whole} == {"one", "two"}
    assert list(questions.chosen([path], 4, 16, 0, 1)) != whole


def test_the_program_names_the_passage_of_every_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, path, out = language_model(tmp_path / "model"), tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    write(path, DOCUMENTS)
    asked: dict[str, str] = {}

    def answers(tokenizer: Any, model: Any, texts: list[str]) -> list[dict[str, str]]:
        found = [{"question": f"question {len(asked) + n}"} for n in range(len(texts))]
        asked.update(zip((row["question"] for row in found), texts, strict=True))
        return found

    fixed = ["--model", str(base), "--texts", str(path), "--count", "10", "--batch", "3", "--seed", "7"]
    assert questions.main([*fixed, "--out", str(out), "--minutes", "0"]) == 0
    assert out.read_text() == ""
    monkeypatch.setattr(questions, "write", answers)
    assert questions.main([*fixed, "--out", str(out)]) == 0
    held = {d: {p.key: p for p in passages([x for x in DOCUMENTS if x.domain == d])} for d in ("one", "two")}
    read = questions.load([out])
    assert set(read) == {"one", "two"}
    assert sum(map(len, read.values())) == len(asked) >= 9
    for domain, rows in read.items():
        for row in rows:
            assert asked[row.queries["question"]] == questions.prompt(held[domain][row.key])


def test_a_small_model_runs_to_the_end(tmp_path: Path) -> None:
    base, path, out = language_model(tmp_path / "model"), tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    write(path, DOCUMENTS[:2])
    fixed = ["--model", str(base), "--texts", str(path), "--out", str(out), "--count", "2"]
    assert questions.main(fixed) == 0
    assert all(set(json.loads(line)) == {"d", "p", "q"} for line in out.read_text().splitlines())
