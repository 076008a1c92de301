"""Keys and tokens of every kind are left out, wherever they stand; what only looks like them stays. All are made up."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import time
import uuid
from pathlib import Path

import pytest

from edge.apps.documents.base import Skipped
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.secrets import KINDS, LEFT_OUT, holds_secrets, marked, without_secrets

CHANCE = random.Random(1)
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def some(count: int, letters: str = LETTERS) -> str:
    return "".join(CHANCE.choices(letters, k=count))


def hexadecimal(count: int) -> str:
    return some(count, "0123456789abcdef")


def pem(kind: str = "RSA PRIVATE KEY", lines: int = 20, headers: str = "") -> str:
    body = "\n".join(some(64) for _ in range(lines))
    return f"-----BEGIN {kind}-----\n{headers}{body}\n-----END {kind}-----\n"


KEY = pem()
TOKENS = {
    "AWS": "AKIA" + some(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "GitHub": "ghp_" + some(36), "GitHub, fine": "github_pat_" + some(82), "GitLab": "glpat-" + some(20),
    "npm": "npm_" + some(36), "Hugging Face": "hf_" + some(34), "PyPI": "pypi-AgEIcHlwaS5vcmc" + some(120),
    "Stripe": "sk_live_" + some(24), "Stripe, restricted": "rk_test_" + some(24),
    "age": "AGE-SECRET-KEY-1" + some(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"), "Google": "AIza" + some(35),
    "Google OAuth": "GOCSPX-" + some(28), "Slack": "xoxb-1234567890-1234567890-" + some(24),
    "Slack hook": "https://hooks.slack.com/services/T" + some(10) + "/B" + some(10) + "/" + some(24),
    "OpenAI": "sk-proj-" + some(40) + "T3BlbkFJ" + some(40), "Anthropic": "sk-ant-api03-" + some(93) + "AA",
    "JWT": "eyJ" + some(30) + ".eyJ" + some(60) + "." + some(43), "SendGrid": f"SG.{some(22)}.{some(43)}",
    "Telegram": "123456789:AA" + some(33), "DigitalOcean": "dop_v1_" + hexadecimal(64),
    "Databricks": "dapi" + hexadecimal(32), "Docker Hub": "dckr_pat_" + some(27), "Shopify": "shpat_" + hexadecimal(32),
    "Vault": "hvs." + some(95), "Terraform": some(14) + ".atlasv1." + some(64), "Twilio": "SK" + hexadecimal(32),
    "Linear": "lin_api_" + some(40), "Grafana": f"glsa_{some(32)}_{hexadecimal(8)}", "Groq": "gsk_" + some(52),
    "Azure storage": "AccountKey=" + some(86) + "==", "Square": "sq0atp-" + some(22),
    "RubyGems": "rubygems_" + hexadecimal(48),
    "Postman": f"PMAK-{hexadecimal(24)}-{hexadecimal(34)}", "Pulumi": "pul-" + hexadecimal(40),
    "Sentry": "sntryu_" + hexadecimal(64), "Heroku": "HRKU-AA" + some(58), "Mailgun": "key-" + hexadecimal(32),
}  # fmt: skip

AWS_SECRET = some(40)
WIREGUARD = some(43) + "="
JWK = some(43)
COMMON = "The river rises in spring. "

FILES = {
    "account.json": (
        json.dumps({"type": "service_account", "private_key": KEY, "client_email": "a@b.example", "note": COMMON}), KEY,
    ),
    "terraform.tfstate.json": (
        json.dumps({"resources": [{"attributes": {"pem": json.dumps({"key": KEY})}}], "outputs": {"note": COMMON}}),
        KEY,
    ),
    "behind.txt": (COMMON * 400 + "\n\n" + KEY + "\n" + COMMON, KEY),
    "windows.txt": ((COMMON + "\n\n" + KEY).replace("\n", "\r\n"), KEY),
    "encrypted.md": (f"{COMMON}\n\n" + pem(headers="Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"), ""),
    "pgp.txt": (f"{COMMON}\n\n" + pem("PGP PRIVATE KEY BLOCK", headers="Version: GnuPG v2\n\n"), ""),
    "code.py": (
        "KEY = (\n" + "".join(f'    "{line}\\n"\n' for line in KEY.splitlines()) + ")\n\n\ndef f():\n"
        f'    """{COMMON}"""\n', KEY,
    ),
    "config.yaml": ("note: " + COMMON + "\n\nkey: |\n" + "".join(f"  {line}\n" for line in KEY.splitlines()), KEY),
    "kube.yaml": (
        f"note: {COMMON}\n\ncurrent-context: x\nkind: Config\nusers:\n- user:\n    client-key-data: "
        f"{base64.b64encode(KEY.encode()).decode()}\n    token: {(TOKEN := some(40))}\n", TOKEN,
    ),
    "putty.txt": (
        f"{COMMON}\n\nPuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPublic-Lines: 1\n{some(64)}\n"
        f"Private-Lines: 2\n{(PUTTY := some(64))}\n{some(20)}=\nPrivate-MAC: {hexadecimal(64)}\n", PUTTY,
    ),
    "keys.jwk.json": (
        json.dumps({"note": COMMON, "keys": [{"kty": "OKP", "crv": "Ed25519", "d": JWK, "x": some(43)}]}), JWK,
    ),
    "wg0.conf": (f"# {COMMON}\n\n[Interface]\nPrivateKey = {WIREGUARD}\n", WIREGUARD),
    "passwords.txt": (
        f"{COMMON}\n\ndb.example.org:5432:*:ann:hunter2hunter2\nlocalhost:*:*:bo:correcthorse\n", "hunter2hunter2",
    ),
    "netrc.txt": (f"{COMMON}\n\nmachine example.org login ann password horsebattery\n", "horsebattery"),
    "npmrc.txt": (f"{COMMON}\n\n//registry.npmjs.org/:_authToken={(NPM := some(36))}\n", NPM),
    "docker.json": (json.dumps({"auths": {"r": {"auth": (AUTH := some(40))}}, "note": COMMON}), AUTH),
    "aws.txt": (f"{COMMON}\n\naws_secret_access_key = {AWS_SECRET}\n", AWS_SECRET),
    "table.csv": (
        "name,token\n" + "".join(f"row {n},none\n" for n in range(300)) + f"ann,{TOKENS['GitHub']}\n", TOKENS["GitHub"],
    ),
    "two.txt": (f"{COMMON}\n\n{TOKENS['npm']}\n{TOKENS['PyPI']}\n", TOKENS["PyPI"]),
    "page.html": (f"<p>{COMMON}</p><pre>{KEY}</pre>", KEY),
    "letter.eml": (f"From: a@b.example\nSubject: {TOKENS['Stripe']}\n\n{COMMON}\n\n{KEY}\n", KEY),
    "title.md": (f"# Use {TOKENS['GitLab']}\n\n{COMMON * 40}\n", TOKENS["GitLab"]),
    **{f"{name}.md": (f"# Notes\n\n{COMMON * 60}\n\nThe token is {token}.\n\n{COMMON * 60}\n", token)
       for name, token in TOKENS.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_only_the_part_with_a_secret_is_left_out(session_extractor: Extractor, tmp_path: Path, name: str) -> None:
    text, secret = FILES[name]
    path = tmp_path / name.replace(" ", "-")
    path.write_bytes(text.encode())
    found = session_extractor.extract(path)
    shown = "\n".join(
        (found.title, *(f"{chunk.context}\n{chunk.text}" for chunk in found.chunks), *map(str, found.mails.values()))
    )
    for piece in (secret, *secret.splitlines()[1:-1]):
        assert not piece or piece[:40] not in shown
    for line in KEY.splitlines()[1:-1]:
        assert line[:30] not in shown
    assert COMMON.strip() in shown or "row 299" in shown, "the rest stays"
    if name != "title.md":
        assert "may hold secrets and" in found.warning


@pytest.mark.parametrize("name", ["npm", "Hugging Face", "PyPI", "Stripe", "age"])
def test_a_file_of_nothing_but_tokens_is_left_out(session_extractor: Extractor, tmp_path: Path, name: str) -> None:
    token = TOKENS[name]
    assert holds_secrets("token", f"\n{token}\n".encode())
    assert holds_secrets("tokens", f"{token}\n{TOKENS['GitHub']}\n".encode())
    path = tmp_path / "keys.txt"
    path.write_text(f"# created: 2026\n{token}\n")
    with pytest.raises(Skipped, match="all of its text may be secret"):
        session_extractor.extract(path)


def test_what_is_learned_knows_the_same_kinds() -> None:
    for text, _ in FILES.values():
        left, count = without_secrets(text)
        assert count
        assert LEFT_OUT in left
        assert len(marked(text).split("\n")) == len(text.split("\n")), "lines keep their numbers"


PICTURE = base64.b64encode(random.Random(2).randbytes(30_000)).decode()
STRANGERS = [
    *(hashlib.new(kind, b"x").hexdigest() for kind in ("md5", "sha1", "sha256", "sha512")),
    *(base64.b64encode(hashlib.sha256(b"x").digest()).decode() for _ in "1"), str(uuid.UUID(int=7)), PICTURE,
    "\n".join(PICTURE[at : at + 76] for at in range(0, len(PICTURE), 76)), f"data:image/png;base64,{PICTURE}",
    base64.urlsafe_b64encode(random.Random(3).randbytes(30_000)).decode(),
    "commit 009e025ad4106ab333aa0b9dc4f2a884390d134c", "sha512-" + base64.b64encode(bytes(range(64))).decode(),
    "-----BEGIN CERTIFICATE-----\n" + "MIIB" * 16 + "\n-----END CERTIFICATE-----", "ssh-ed25519 " + "AAAA" * 17,
    "A key begins with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----.", "use ghp_abc or sk-learn",
    "sk-circle-fade-dot-and-another-long-class-name-of-a-page", "task-force-of-the-european-union-for-the-river-danube",
    "main.py:12:def:f:return", "127.0.0.1:8080:80", "12:30:45:00:01", "cpe:2.3:a:gnu:bash:5.1:*:*:*:*:*:*:*",
    "root:x:0:0:root:/root:/bin/bash", "PrivateKey = path/to/key", "machine learning login page password field",
    "the token: see below", "glossary-of-the-terms-of-hydrology", '{"d": "a plain value that is rather long", "k": 1}',
    "npm_config_registry_and_other_variables", "hf_hub_download(repo_id, filename)", "pypi-server",
    "EAAA and SKU numbers",
    "https://example.org/a/very-long-path-with-many-words-and-0123456789abcdef0123456789abcdef", "xoxo-hugs-and-kisses",
    "AKIAs and ASIAN countries", "eyJ is how a JSON object begins in base64", "SG.1 and SG.2", "AIza is a prefix",
    "[Interface]\nPublicKey = " + "A" * 43 + "=", "kind: Config\ntoken: <your token here>",
    "7b2270726976617465223a7472756561", "0x" + "ab" * 32, "f47ac10b-58cc-4372-a567-0e02b2c3d479",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(STRANGERS)))
def test_strangers_are_not_taken_for_secrets(number: int) -> None:
    assert without_secrets(STRANGERS[number]) == (STRANGERS[number], 0)
    assert not holds_secrets("a.txt", STRANGERS[number].encode())


def test_hashes_and_pictures_in_bulk_are_not_taken_for_secrets() -> None:
    chance = random.Random(4)
    lines = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(5_000)]
    lines += [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(5_000)]
    lines += [base64.b64encode(chance.randbytes(48)).decode() for _ in range(10_000)]
    assert without_secrets("\n".join(lines))[1] == 0


@pytest.mark.parametrize("kind", KINDS, ids=[kind[0] for kind in KINDS])
def test_no_kind_takes_more_than_linear_time(kind: tuple[str, str, str]) -> None:
    for word in kind[1].split("|"):
        if word == "PRIVATE KEY":
            word = "-----BEGIN PRIVATE KEY-----"
        for body in (
            "",
            "a",
            " ",
            "\n",
            ":",
            "-",
            "\\",
            "\\n",
            "A: ",
            "a.",
            "a:1234:",
            "machine a ",
            "9",
            "-----",
            "=",
        ):
            begun = time.process_time()
            marked((word + body) * (60_000 // len(word + body)))
            marked(word + body * (60_000 // max(1, len(body))) + word)
            assert time.process_time() - begun < 2, (word, body)
