"""Prints what happens to each key of a checkpoint, from the tables in the code: `python docs/model_keys.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_HEAD = """# Keys of checkpoints

What happens to each key of a checkpoint's JSON files. A key is used, it changes no result, or only the values here are
right and others are refused. A key that is in no list is refused by name unless it is null.

The tests compare tiny random models of {run} families with transformers, with each key varied and each key left out. A
checkpoint of another family is refused by the name of its `model_type`. Of these the tests walk the configuration, too:
{others}.
"""
OTHERS = """albert bert-generation big_bird convbert deberta ernie esm eurobert gemma2 ibert jina_embeddings_v3 layoutlm
llama megatron-bert mistral modernbert-decoder nystromformer rembert roberta-prelayernorm roc_bert roformer splinter
xlm-roberta-xl xmod"""
"""Families that are not packed, and that the tests walk."""
_CLASSES = """Unless `tokenizer_class` is `PreTrainedTokenizerFast` or `TokenizersBackend`, `do_lower_case` and
`tokenize_chinese_chars` are true where the file lacks them: BERT's classes take them so, whatever tokenizer.json says.
"""


def page() -> str:
    """The whole page."""
    from edge.models import family as keys
    from edge.models.architectures import FAMILIES

    run = len(FAMILIES.keys() - {"jina_bert", "new"})  # the code of these two is not in transformers
    head = _HEAD.format(run=run, others=", ".join(f"`{name}`" for name in OTHERS.split()))
    lines = [head, "## config.json of every family", "", *_table(keys.CONFIG)]
    lines += ["## config.json of a family", ""]
    alike: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        text = "\n".join(_table(family.keys))
        if family.code:
            text += (
                f"\n`auto_map` may name the code of `{family.code}`; it is not run, the layers here compute the same.\n"
            )
        alike.setdefault(text, []).append(name)
    for text, names in alike.items():
        lines += [f"### {', '.join(names)}", "", text]
    files = {
        "sentence_transformers in config.json": keys.CROSS_ENCODER,
        "sentence_bert_config.json": keys.TRANSFORMER,
        "config_sentence_transformers.json": keys.SENTENCES,
        "modules.json, each module": keys.MODULE,
        "config.json of Pooling": keys.POOLING,
        "config.json of Dense": keys.DENSE,
        "config.json of Normalize": keys.NORMALIZE,
        "tokenizer_config.json": keys.TOKENIZER,
    }
    for name, table in files.items():
        lines += [f"## {name}", "", *_table(table)]
    lines.append(_CLASSES)
    return "\n".join(lines).rstrip() + "\n"


def _table(keys: Any) -> Iterator[str]:
    yield from ("| keys | |", "|---|---|")
    if keys.used:
        yield f"| {_names(keys.used)} | used |"
    alike: dict[str, list[str]] = {}
    for key, values in sorted(keys.accepted.items()):
        alike.setdefault(" or ".join(f"`{_value(value)}`" for value in values), []).append(key)
    for only, names in alike.items():
        yield f"| {_names(names)} | only {only} |"
    if keys.harmless:
        yield f"| {_names(keys.harmless)} | changes no result |"
    yield ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _value(value: object) -> str:
    return {"None": "null", "False": "false", "True": "true"}.get(str(value), str(value))


if __name__ == "__main__":
    print(page(), end="")
