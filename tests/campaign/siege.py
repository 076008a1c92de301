"""A long siege of one server: many clients of which half misbehave, mixed work, memory looked at from outside.

python tests/campaign/siege.py --clients 50 --minutes 10 --json siege.json
python tests/campaign/siege.py --models DIR          with the default models that lie in DIR, not tiny random ones
python tests/campaign/siege.py --llm FILE --kills 5  a language model writes, too, and the server is killed in between
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import runpy
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != FOLDER]
    runpy.run_path(str(FOLDER.parent / "packages.py"))["load"]()

from campaign.besiegers import Besiegers, words  # noqa: E402
from campaign.program import Home  # noqa: E402
from campaign.server import Running  # noqa: E402

WARM_SHARE = 0.1
"""Of the time: memory is compared from there on, when many have asked at once."""

GROWTH = 0.05
"""Of the limit: how much more the last third may hold than the first, in the middle of its samples."""

STOPPED_S = 3.0
"""If two samples are so many seconds apart, nothing on the machine ran between them."""

_PROMPTS = 12

ALL = "all"
"""The requests of every kind together, in `Report.served`."""


@dataclass
class Report:
    """The results of a siege; times in seconds, sizes in bytes. `served`: of well-behaved clients, by kind: number,
    median, 95th percentile and maximum of the times; `refused`: because memory was short or others waited; `killed`:
    lengths of the times from a kill until the server served again, by their start; `stopped`: of those in which nothing
    on the machine ran, whose requests are left out; `lost`: confirmed writes and deletions of which the opposite was
    true afterwards; `peak`: RssAnon of the process tree; `minutes`, `thirds`: medians of its samples; `holders`: of
    memory by the server's own account, in the first third and in the last."""

    clients: int
    seconds: float
    limit: int
    served: dict[str, dict[str, float]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    texts: int = 0
    killed: dict[int, float] = field(default_factory=dict)
    mischief: int = 0
    written: int = 0
    deleted: int = 0
    lost: int = 0
    peak: int = 0
    samples: int = 0
    minutes: list[int] = field(default_factory=list)
    thirds: list[int] = field(default_factory=list)
    holders: list[dict[str, int]] = field(default_factory=list)
    stopped: dict[int, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def besiege(
    home: Home, place: Path, *, clients: int, seconds: float, limit: int, pause: float = 0.25, seed: int = 1,
    interval: float = 0.01, llm: Path | None = None, kills: int = 0,
) -> Report:  # fmt: skip
    """Besieges a server, then starts it again and looks for the confirmed data. `home` has a collection named `col`;
    `pause` of a client between two requests and `interval` between two looks at the memory, in seconds; `llm`: a
    language model that writes for half of the requests."""
    report = Report(clients, seconds, limit)
    chance = random.Random(seed)
    prompts = [f"Write about the {words(chance, 3)}." for _ in range(_PROMPTS)] if llm else []
    with Besieged(home, place / "memory", limit, ["--llm", str(llm)] if llm else []) as server:
        if server.port == 0:
            report.problems.append(f"the server did not start: {server.running.said}")
            return report
        attack = Besiegers(server.port, clients, seconds, pause, seed, prompts)
        attack.warm()
        server.watch(interval)
        begin = time.monotonic()
        moments = sorted(chance.uniform(0.1, 0.9) * seconds for _ in range(kills))
        killing = threading.Thread(target=server.kill, args=(moments,))
        accounts = [threading.Timer(share * seconds, _note, (server.port, report)) for share in (0.25, 0.95)]
        for thread in (*accounts, killing):
            thread.start()
        attack.run()
        for thread in (*accounts, killing):
            thread.join()
        looks = server.unwatch()
        report.lost = _lost(server.port, attack, report)
        server.end(report)
        server.start()
        report.lost = max(report.lost, _lost(server.port, attack, report))
        server.end(report)
    report.peak = server.peak
    report.problems += attack.problems
    stops = [(at, after) for (at, _), (after, _) in pairwise(looks) if after - at > STOPPED_S]
    report.stopped = {int(at - begin): round(after - at, 1) for at, after in stops}
    report.killed = {int(at - begin): round(after - at, 1) for at, after in server.killed}
    report.texts = len(attack.texts)
    stops += server.killed

    def ran(started: float, ended: float) -> bool:
        return not any(started < after and at < ended for at, after in stops)

    report.problems += [text for started, ended, text in attack.unanswered if ran(started, ended)]
    times = {kind: [end - start for start, end in spans if ran(start, end)] for kind, spans in attack.seconds.items()}
    report.mischief, report.samples = attack.mischief, len(looks)
    report.written, report.deleted = len(attack.kept) + len(attack.deleted), len(attack.deleted)
    report.refused = dict(sorted(attack.refused.items()))
    times[ALL] = [second for each in times.values() for second in each]
    report.served = {kind: _figures(each) for kind, each in sorted(times.items()) if each}
    report.thirds = _thirds(looks, seconds)
    report.minutes = _minutes(looks)
    if report.peak > limit:
        report.problems.append(f"took {report.peak:,} bytes of {limit:,}")
    if not kills and report.thirds[-1] - report.thirds[0] > GROWTH * limit:
        report.problems.append(f"memory grew from {report.thirds[0]:,} to {report.thirds[-1]:,} bytes")
    return report


class Besieged:
    """A server that is sampled from outside, and that may be killed and started again on its port."""

    def __init__(self, home: Home, memory: Path, limit: int, options: Sequence[str]) -> None:
        self.killed: list[tuple[float, float]] = []
        self.peak = 0
        self.port = 0
        self._make = lambda port: Running(home, limit, memory, port, options)
        self._looks: list[tuple[float, int]] = []
        self._done = threading.Event()

    def __enter__(self) -> Besieged:
        self.start()
        return self

    def start(self) -> None:
        """Starts it on the port that it had before."""
        self.running = self._make(self.port).__enter__()
        self.port = self.running.port

    def watch(self, interval: float) -> None:
        """Begins to look at its memory, with so many seconds between two looks."""
        self._watching = threading.Thread(target=self._watch, args=(interval,), daemon=True)
        self._watching.start()

    def unwatch(self) -> list[tuple[float, int]]:
        """The time and the bytes of each look."""
        self._done.set()
        self._watching.join()
        return self._looks

    def _watch(self, interval: float) -> None:
        while not self._done.wait(interval):
            self._looks.append((time.monotonic(), self.running.sampler.resident))

    def kill(self, times: Sequence[float]) -> None:
        """Kills it at each of these times, in seconds from now, and starts it again."""
        begin = time.monotonic()
        for at in times:
            time.sleep(max(0.0, begin + at - time.monotonic()))
            killed = time.monotonic()
            self.__exit__()
            self.start()
            self.killed.append((killed, time.monotonic()))

    def end(self, report: Report) -> None:
        """Ends it as Ctrl-C does, and reports what is wrong with that."""
        code, errors = self.running.end()
        self.__exit__()
        if code != 0 or errors.strip():
            report.problems.append(f"ended with {code} and said {errors[-300:]!r}")

    def __exit__(self, *error: object) -> None:
        self.running.__exit__(*error)
        self.peak = max(self.peak, self.running.peak)


def _note(port: int, report: Report) -> None:
    """Notes the holders of the server's memory now."""
    with contextlib.suppress(OSError, HTTPException, ValueError):
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/v1/engine")
        memory = json.loads(connection.getresponse().read())["memory"]
        connection.close()
        report.holders.append({"resident": memory["resident"], "used": memory["used"], **memory["holders"]})


def _thirds(looks: list[tuple[float, int]], seconds: float) -> list[int]:
    """The middle of the samples of each third of the time, after the models have opened."""
    first = looks[0][0] + WARM_SHARE * seconds
    length = (looks[0][0] + seconds - first) / 3
    parts = [[n for at, n in looks if first + i * length <= at < first + (i + 1) * length] for i in range(3)]
    return [int(statistics.median(part or [0])) for part in parts]


def _minutes(looks: list[tuple[float, int]]) -> list[int]:
    """The median of the samples of each minute; a last part of less than half a minute is left out."""
    begin = looks[0][0]
    count = round((looks[-1][0] - begin) / 60)
    parts = [[n for at, n in looks if 60 * i <= at - begin < 60 * (i + 1)] for i in range(count)]
    return [int(statistics.median(part or [0])) for part in parts]


def _figures(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "count": len(ordered),
        "median": round(statistics.median(ordered), 4),
        "p95": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 4),
        "longest": round(ordered[-1], 4),
    }


def _lost(port: int, attack: Besiegers, report: Report) -> int:
    """How many confirmed writes and deletions are not so."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", f"/memories?user_id=siege&limit={len(attack.kept) + len(attack.deleted) + 1000}")
        answer = connection.getresponse()
        found = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        report.problems.append(f"the memories cannot be listed: {answer.status} {found}")
        return 0
    known = {memory["id"]: memory["memory"] for memory in found["results"]}
    lost = [name for name, text in attack.kept.items() if known.get(name) != text]
    lost += [name for name in attack.deleted if name in known]
    if lost:
        report.problems.append(f"{len(lost)} confirmed writes or deletions are lost, such as {lost[0]}")
    return len(lost)


def main() -> int:
    """Runs one siege; the exit code is 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--memory", type=int, default=300, help="MB")
    parser.add_argument("--pause", type=float, default=5, help="mean seconds between two requests of a client")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", type=Path, help="a folder of models that holds the default ones")
    parser.add_argument("--llm", type=Path, help="a GGUF file; half of the requests let it write")
    parser.add_argument("--kills", type=int, default=0, help="how often the server is killed meanwhile")
    parser.add_argument("--json", type=Path, help="write the report here")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(2))  # so that the server is ended, too
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        home = prepared(place, chosen.models)
        report = besiege(
            home, place, clients=chosen.clients, seconds=60 * chosen.minutes, limit=chosen.memory * 10**6,
            pause=chosen.pause, seed=chosen.seed, llm=chosen.llm and chosen.llm.resolve(), kills=chosen.kills,
        )  # fmt: skip
    text = json.dumps(asdict(report), indent=1)
    if chosen.json:
        chosen.json.write_text(text)
    print(text)
    print("\n".join(_told(report)))
    return 1 if report.problems else 0


def _told(report: Report) -> Iterator[str]:
    """The figures that the documents state, a line for each."""
    every = report.served.get(ALL, {"count": 0, "median": 0, "p95": 0, "longest": 0})
    yield (
        f"{report.clients} clients for {report.seconds:.0f} s, half of them misbehaving ({report.mischief} times): "
        f"{every['count']} requests answered, {sum(report.refused.values())} refused for the moment; "
        f"{report.texts} texts; {len(report.killed)} kills"
    )
    for kind, each in report.served.items():
        yield f"{kind:16} {each['count']:5} times, median {each['median']:7.3f} s, p95 {each['p95']:7.3f} s"
    yield f"{report.written} writes and {report.deleted} deletions confirmed, {report.lost} lost"
    marked = [f"minute {n} {report.minutes[n - 1] / 1e6:.0f} MB" for n in (1, 5, 10) if n <= len(report.minutes)]
    peak, limit = report.peak / 1e6, report.limit / 1e6
    yield f"peak {peak:.0f} MB of {limit:.0f} MB; median of {', '.join(marked) or 'no whole minute'}"
    yield f"{len(report.problems)} problems" + "".join(f"\n  {problem}" for problem in report.problems)


def prepared(place: Path, models: Path | None = None) -> Home:
    """A home with a small collection named `col`, and tiny models unless there are others."""
    home = Home(place / "home")
    if models is None:
        home.with_tiny_models()
    else:
        home.models.rmdir() if home.models.is_dir() else None
        home.models.symlink_to(models.resolve())
    documents = home.work / "documents"
    documents.mkdir()
    for number in range(40):
        text = ". ".join(words(random.Random(number * 100 + line), 14) for line in range(12))
        (documents / f"{number}.md").write_text(f"# Part {number}\n\n{text}.\n", encoding="utf-8")
    made = home.edge("index", "documents", "-c", "col")
    assert made.code == 0, made
    return home


if __name__ == "__main__":
    sys.exit(main())
