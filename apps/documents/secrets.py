"""Files and parts of files that are left out because they hold secrets. A pattern `!name` in an ignore file, or naming
it as a root, includes such a file; a part of another file stays out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache

from edge.apps.documents.base import Block, Reason, Skipped

NAMES = (
    "*.env", "*.jks", "*.kdb", "*.kdbx", "*.key", "*.keychain*", "*.keystore", "*.keytab", "*.p12", "*.pem", "*.pfx",
    "*.ppk", "*.psafe3", "*.token", ".env*", ".git-credentials", ".netrc", ".pgpass", "_netrc", "client_secret*.json",
    "credentials", "htpasswd", "id_dsa", "id_ecdsa", "id_ed25519", "id_rsa", "secring.*",
)  # fmt: skip
"""Globs of names, lower case."""

_NAMED = re.compile("|".join(map(translate, NAMES)))

_WORD_BEGINS, _WORD_ENDS = r"(?<![\w-])", r"(?![A-Za-z0-9])"

_BEGIN = r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
_END = r"-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
_GAP = r"""(?:[\s"'+,;|>\\]|(?<=\\)[nrt]|&#\w{1,3};){0,200}"""
"""Between the lines of a key: line breaks, also those of JSON in JSON, of code and of XML."""

KINDS: tuple[tuple[str, str, str], ...] = (
    # Keys
    ("private keys (PEM, PGP, OpenSSH), also with \\n for line breaks", "PRIVATE KEY",
     rf"{_BEGIN}{_GAP}(?:[A-Za-z-]{{2,30}}:[^\n\\]{{0,200}}[\n\\]{_GAP}){{0,8}}[A-Za-z0-9+/=]{{40}}"
     rf"(?:(?:(?!-----)[\s\S]){{0,30000}}{_END}|[A-Za-z0-9+/=\s\\]{{0,30000}}(?:-----END[^\n]{{0,60}})?)"),
    ("private keys in base64 (kubeconfig)", "LS0tLS1CRUdJTi",
     r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{0,40}(?:UFJJVkFUR|BSSVZBVE|QUklWQVRF)[A-Za-z0-9+/=]+(?:\s+[A-Za-z0-9+/=]{40,})*"),
    ("PuTTY", "Private-Lines",
     r"Private-Lines: ?\d{1,4}\s+(?:[A-Za-z0-9+/=]{1,80}\s+){1,200}(?:Private-(?:MAC|Hash): ?[0-9a-f]+)?"),
    ("JWK", '"kty', r"""\"(?:d|k|p|q|dp|dq|qi)\\*"\s*:\s*\\*"([\w=-]{20,})"""),
    ("age", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58}"),
    ("WireGuard", "PrivateKey|PresharedKey", r"(?:PrivateKey|PresharedKey)\s{0,9}=\s{0,9}([A-Za-z0-9+/]{43}=)"),
    # Files of passwords
    (".pgpass", ":", r"(?m:^(?:localhost|\*|[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}):(?:\d{4,5}|\*):[\w.*-]{1,63}:"
     r"[\w.*@-]{1,63}:\S{3,200}$)"),
    (".netrc", "machine", r"machine\s{1,9}(?:localhost|[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})\s{1,9}login\s{1,9}\S{1,200}"
     r"\s{1,9}password\s{1,9}\S+"),
    (".npmrc", "_auth", r"_auth(?:Token)?\s{0,9}=\s{0,9}([^\s$\"']{16,})"),
    ("Docker", '"auths', r"""\"auth"\s{0,9}:\s{0,9}"([A-Za-z0-9+/=]{16,})"""),
    ("kubeconfig", "current-context",
     r"(?m:^[ \t]{0,40}(?:token|id-token|access-token|refresh-token|password):[ \t]{0,9}[\"']?([^\s\"'{}$]{8,}))"),
    # Tokens
    ("AWS", "AKIA|ASIA|ABIA|ACCA", rf"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}{_WORD_ENDS}"),
    ("AWS secret access keys", "ccessKey|access_key|ACCESS_KEY|ccess key",
     rf"(?i:(?:aws_?)?secret[_ ]?access[_ ]?key)[\"']?\s{{0,9}}[=:,]\s{{0,9}}[\"']?([A-Za-z0-9+/]{{40}}){_WORD_ENDS}"),
    ("Alibaba", "LTAI", rf"LTAI[A-Za-z0-9]{{20}}{_WORD_ENDS}"),
    ("Anthropic, OpenAI and others", "sk-", r"sk-(?=[\w-]{0,200}\d)(?=[\w-]{0,200}[A-Z])[\w-]{32,}"),
    ("Azure", "AccountKey=|Q~", rf"(?:AccountKey=([A-Za-z0-9+/]{{86}}==)|[\w~.]{{3}}\dQ~[\w~.-]{{31,34}}{_WORD_ENDS})"),
    ("Databricks", "dapi", rf"dapi[a-f0-9]{{32}}{_WORD_ENDS}"),
    ("DigitalOcean", "_v1_", rf"do[opr]_v1_[a-f0-9]{{64}}{_WORD_ENDS}"),
    ("Docker Hub", "dckr_pat_", r"dckr_pat_[\w-]{27,}"),
    ("Fly.io", "fo1_|fm2_", r"(?:fo1_[\w-]{43}|fm2_[A-Za-z0-9+/]{100,})"),
    ("GitHub", "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_", r"(?:gh[opsur]_\w{36,}|github_pat_\w{50,})"),
    ("GitLab", "glpat-|gldt-|glrt-|glft-|glffct-|glimt-|glsoat-|glagent-|gloas-|glcbt-|glptt-|GR1348941",
     r"(?:gl(?:pat|dt|rt|ft|ffct|imt|soat|agent|oas|cbt)-[\w.-]{20,}|glptt-[0-9a-f]{40}|GR1348941[\w-]{20})"),
    ("Google", "AIza|GOCSPX-|ya29.", r"(?:AIza[\w-]{35}|GOCSPX-[\w-]{28}|ya29\.[\w-]{40,})"),
    ("Grafana", "glc_|glsa_", r"(?:glc_[A-Za-z0-9+/]{32,}|glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8})"),
    ("Groq, Perplexity, Replicate, xAI", "gsk_|pplx-|r8_|xai-",
     rf"(?:gsk_[A-Za-z0-9]{{52}}|pplx-[A-Za-z0-9]{{48}}|r8_[A-Za-z0-9]{{37}}|xai-[A-Za-z0-9]{{80}}){_WORD_ENDS}"),
    ("HashiCorp", "hvs.|hvb.|.atlasv1.", r"(?:hv[sb]\.[\w-]{90,}|[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,})"),
    ("Heroku", "HRKU-AA", r"HRKU-AA[\w-]{58}"),
    ("Hugging Face", "hf_|api_org_", rf"(?:hf|api_org)_[A-Za-z0-9]{{34,40}}{_WORD_ENDS}"),
    ("JWT", "eyJ", r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"),
    ("Linear, Notion, Postman, Pulumi", "lin_api_|ntn_|PMAK-|pul-",
     r"(?:lin_api_[A-Za-z0-9]{40}|ntn_[A-Za-z0-9]{46}|PMAK-[a-f0-9]{24}-[a-f0-9]{34}|pul-[a-f0-9]{40})"
     rf"{_WORD_ENDS}"),
    ("npm", "npm_", rf"npm_[A-Za-z0-9]{{36}}{_WORD_ENDS}"),
    ("PyPI, RubyGems", "pypi-|rubygems_", r"(?:pypi-AgE[\w-]{50,}|rubygems_[a-f0-9]{48})"),
    ("SendGrid, Brevo, Mailgun", "SG.|xkeysib-|key-",
     rf"(?:SG\.[\w-]{{22}}\.[\w-]{{43}}|xkeysib-[a-f0-9]{{64}}-\w{{16}}|key-[0-9a-f]{{32}}{_WORD_ENDS})"),
    ("Sentry", "sntrys_|sntryu_", r"(?:sntryu_[a-f0-9]{64}|sntrys_eyJ[A-Za-z0-9+/=_]{40,})"),
    ("Shopify", "shp", rf"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{{32}}{_WORD_ENDS}"),
    ("Slack", "xox|xapp-|hooks.slack.com",
     r"(?:xox[abeoprs]-[\w-]{20,}|xapp-\d-[A-Z0-9]+-\d+-[a-z0-9]+|hooks\.slack\.com/services/[A-Za-z0-9+/]{40,})"),
    ("Square", "EAAA|sq0", r"(?:EAAA[\w-]{60}|sq0(?:atp|csp)-[\w-]{22,43})"),
    ("Stripe", "_live_|_test_|_prod_", r"(?:sk|rk)_(?:test|live|prod)_[A-Za-z0-9]{10,}"),
    ("Telegram", ":AA", rf"\d{{8,10}}:AA[\w-]{{33}}{_WORD_ENDS}"),
    ("Twilio", "SK", rf"SK[0-9a-f]{{32}}{_WORD_ENDS}"),
)  # fmt: skip
"""A name; words between bars, of which a text with such a secret holds at least one; and an expression, of which the
group is the secret if it has one. The formats are those of the rules of gitleaks and detect-secrets."""

_FREQUENT = "etaoinsrhldcumfpgwybvk.,-AITSCE"  # Letters in the order of their frequency; others are rarer.


def _by_letter() -> tuple[tuple[str, list[tuple[str, re.Pattern[str]]]], ...]:
    """The words with their expressions, by the rarest letter of each, so that most texts are not searched for each
    word."""
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for _, words, expression in KINDS:
        pattern = re.compile(expression if expression.startswith(("-", "(?m")) else f"{_WORD_BEGINS}(?:{expression})")
        for word in words.split("|"):
            letter = max(word, key=lambda letter: _FREQUENT.find(letter) % 1000)  # 999 for others
            found.setdefault(letter, []).append((word, pattern))
    return tuple(found.items())


_BY_LETTER = _by_letter()
_PATTERNS = tuple(dict.fromkeys(pattern for _, words in _BY_LETTER for _, pattern in words))

LEFT_OUT = "[secret left out]"

_MARK = "\ufdd0"  # Stands for a secret until its part is left out. No document holds this noncharacter.


ASKED = "may hold secrets, and was asked for"
"""The warning of a file with secrets that is included. Each run looks whether it is still asked for."""


def names_secrets(glob: str) -> bool:
    """Whether the glob of a name, such as `server.pem` or `*.pem`, asks for files with secrets. `*.txt` does not."""
    return not any(char in glob for char in "*?[") or _NAMED.match(glob.lower()) is not None


def holds_secrets(name: str, head: bytes = b"") -> bool:
    """Whether a whole file is secret, by its name or its first bytes, which hold nothing but keys and tokens."""
    if _NAMED.match(name.lower()):
        return True
    text = head.decode("utf-8", "replace").strip("\ufeff\x00 \t\r\n")
    begins = text and any(pattern.match(text) for pattern in _PATTERNS)  # most end here, not searched for each word
    return bool(begins) and not _replaced(text, "")[0].strip()


def without_secrets(text: str) -> tuple[str, int]:
    """A text with `LEFT_OUT` in place of its private keys and tokens, and their number."""
    return _replaced(text, LEFT_OUT)


def marked(text: str) -> str:
    """The text of a file with a mark in place of each secret, and with all its lines."""
    return _replaced(text, _MARK, lines=True)[0]


_OPEN = re.compile(_BEGIN + r"[^-]*\Z")
_GOES_ON = re.compile(
    r"[A-Za-z0-9+/=]{16,}(?:\s[A-Za-z0-9+/=]{4,})*\s?|[A-Za-z-]{2,30}:[^\n]*(?:\n[A-Za-z-]{2,30}:[^\n]*)*"
)


class SecretParts:
    """The parts of a file in their order: the next ones may go on with a key."""

    def __init__(self) -> None:
        self.left_out = 0

    def without(self, blocks: Iterable[Block]) -> Iterator[Block]:
        within = False
        for block in blocks:
            within = within and _GOES_ON.fullmatch(block.text) is not None
            opened = "PRIVATE KEY" in block.text and _OPEN.search(block.text) is not None
            if within or opened or _MARK in block.text or _spans(block.text):
                within = within or opened
                self.left_out += 1
            elif block.path:
                path = _path_without_secrets(block.path)
                yield block if path == block.path else replace(block, path=path)
            else:
                yield block


@lru_cache(64)
def _path_without_secrets(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(without_secrets(name.replace(_MARK, LEFT_OUT))[0] for name in path)


def _spans(text: str) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    held = [pattern for letter, words in _BY_LETTER if letter in text for word, pattern in words if word in text]
    for pattern in dict.fromkeys(held):
        spans += (match.span(match.lastindex or 0) for match in pattern.finditer(text))
    apart: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if apart and start <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((start, end))
    return apart


def _replaced(text: str, by: str, *, lines: bool = False) -> tuple[str, int]:
    """A text with `by` in place of each secret, with the line breaks of each if `lines`; and their number."""
    spans = _spans(text)
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], by, "\n" * text.count("\n", start, end) if lines else ""]
        at = end
    return "".join((*parts, text[at:])), len(spans)


def refuse_secrets(name: str, head: bytes = b"") -> None:
    if holds_secrets(name, head):
        raise Skipped(Reason.SECRET, f"may hold secrets; a line !{name} in .edgeignore includes it")
