"""Runs classes of attacks: a few cases of each, or as many as a time has room for."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from campaign.base import Attack, Case, Outcome, failed
from campaign.command_lines import CommandLines
from campaign.interruptions import FailingReads, FailingWrites, Kills, PowerLoss
from campaign.limit import Limit
from campaign.program import end_forks
from campaign.report import Tally, table
from campaign.siege import Siege

SEED = 1
ATTACKS: tuple[Attack, ...] = (
    CommandLines(), Limit(), Siege(), Kills(), FailingWrites(), FailingReads(), PowerLoss(),
)  # fmt: skip


def run(
    chosen: Sequence[Attack],
    place: Path,
    *,
    seed: int,
    cases: int | None = None,
    deadline: float | None = None,
    only: int = 0,
    match: str = "",
    tallies: list[Tally] | None = None,
) -> list[Tally]:
    """Runs classes of attacks, `cases` of each (None: `quick`), and until the `deadline` of `time.monotonic()`, which
    they share evenly. `only`: the number of the one case to run, from 1; `match`: only cases whose label holds this
    text; `tallies` takes the counts, complete up to where an exception ends the run."""
    # A campaign that a shell starts in the background ignores Ctrl-C, and every program it starts inherits that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    tallies = [] if tallies is None else tallies
    for position, attack in enumerate(chosen):
        tally = Tally(attack.name, attack.promise)
        tallies.append(tally)
        least = attack.quick if cases is None and deadline is None else cases or 0
        until = 0.0
        if deadline is not None:
            now = time.monotonic()
            until = now + max(0.0, deadline - now) / (len(chosen) - position)
        own = place / attack.name
        own.mkdir()
        try:
            for number, case, outcome, seconds in _each(attack, own, seed, least, until, only, match):
                tally.add(number, case.label, outcome, seconds)
                if not outcome.held and tally.failures:
                    print(tally.failures[-1], file=sys.stderr)
        finally:
            shutil.rmtree(own, ignore_errors=True)
        print(f"{attack.name}: {tally.held:,} of {tally.tried:,} held, {tally.seconds:.0f} s", file=sys.stderr)
    return tallies


def _each(
    attack: Attack, place: Path, seed: int, least: int, until: float, only: int, match: str
) -> Iterator[tuple[int, Case, Outcome, float]]:
    started = time.monotonic()
    try:
        attack.prepare(place)
    except Exception as error:
        yield 0, Case("preparation"), _broken(error), time.monotonic() - started
        return
    tried = 0
    for number, case in enumerate(attack.cases(random.Random(f"{seed}:{attack.name}")), 1):
        if match not in case.label:
            continue
        if only and number != only:
            if number > only:
                return
            continue
        if not only and tried >= least and time.monotonic() >= until:
            return
        tried += 1
        began = time.monotonic()
        try:
            outcome = attack.attempt(case, place)
        except Exception as error:
            outcome = _broken(error)
        yield number, case, outcome, time.monotonic() - began


def _broken(error: Exception) -> Outcome:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "?"
    return failed(f"{type(error).__name__} at {where}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns 1 when a case failed."""
    every = {attack.name: attack for attack in ATTACKS if all(map(find_spec, attack.needs))}
    parser = argparse.ArgumentParser(description="Attacks every promise of the program, and counts what held.")
    parser.add_argument("--quick", action="store_true", help="A few cases of each class, one minute in all.")
    parser.add_argument("--hours", type=float, help="Run for so long.")
    parser.add_argument("--class", dest="names", action="append", choices=sorted(every), help="Only this class.")
    parser.add_argument("--cases", type=int, help="Cases of each class; with --hours, at least.")
    parser.add_argument("--case", type=int, default=0, help="The number of the one case to run.")
    parser.add_argument("--match", default="", help="Only cases whose label holds this text.")
    parser.add_argument("--seed", type=int, default=SEED, help="Of everything that is chosen by chance.")
    parser.add_argument("--list", action="store_true", help="Say which classes there are.")
    options = parser.parse_args(arguments)
    if options.list:
        for attack in every.values():
            print(f"{attack.name:18} {attack.promise}")
        return 0
    chosen = [attack for name, attack in every.items() if not options.names or name in options.names]
    if options.hours is None and options.cases is None and not options.quick and not options.case:
        options.quick = True
    deadline = time.monotonic() + 3600 * options.hours if options.hours is not None else None
    place = Path(tempfile.mkdtemp(prefix="campaign-")).resolve()
    tallies: list[Tally] = []
    interrupted = False
    try:
        run(
            chosen, place, seed=options.seed, cases=options.cases, deadline=deadline, only=options.case,
            match=options.match, tallies=tallies,
        )  # fmt: skip
    except KeyboardInterrupt:  # the findings until then are reported
        print("the campaign ends here", file=sys.stderr)
        interrupted = True
    finally:
        end_forks()
        shutil.rmtree(place, ignore_errors=True)
    print(table(tallies))
    return 130 if interrupted else 1 if any(tally.failed for tally in tallies) else 0
