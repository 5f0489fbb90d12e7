"""What the cache saves and how fast the default model decodes: `make bench`.

Everything is measured in one process; what is compared takes turns.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.decoding import bench_decoding
from bench.measuring import Report, interleaved_s, machine, resident_mb
from session.tiny_model import make_tiny_model

from dora_voice_llm import weights
from dora_voice_session.hf_model import HfModel, load
from dora_voice_session.pool import Limits, SessionPool
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings
from dora_voice_session.session import Session
from dora_voice_session.work import run

PROMPTS = (Path(__file__).parent / "prompts.txt").read_text().splitlines()
REPLY_TOKENS = 24
SETTINGS = SessionSettings(
    system_prompt="You are a helpful talking robot. Give short and correct spoken answers in plain sentences.",
    generation=Generation(max_new_tokens=REPLY_TOKENS),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench-session.json"), help="JSON file for the results")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    folder = weights.installed()
    model = load(str(folder), threads=2)
    report = Report({"model": folder.name, **_settings(model), **machine()})
    bench_memory(report, model)
    bench_decoding(report, model, PROMPTS, options.rounds)
    bench_turns(report, model, options.rounds)
    bench_context_drop(report, model)
    bench_going_back(report, model, options.rounds)
    bench_side_by_side(report, model, options.rounds)
    bench_short_sessions(report)
    report.write(options.out)
    return int(any(row.is_kept is False for row in report.rows))


def _settings(model: HfModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in ("dtype", "decoder", "device", "threads")}


# Turns


def bench_turns(report: Report, model: HfModel, rounds: int) -> None:
    """Time to the first token at growing histories, and right after going back."""
    report.title("time to first token")
    session = Session("turns", model, context_tokens=8192, settings=SETTINGS)
    kept_ms: dict[int, float] = {}
    for turn in range(1, 51):
        session.add([_question(turn)])
        if turn in (2, 10, 50):
            taken = _first_token_s(session, model, rounds)
            kept_ms[turn] = 1000 * taken["kept"]
            tokens = session.usage.input_tokens
            report.add(f"turn {turn}, {tokens} tokens of prompt", kept_ms[turn], "ms")
            ratio = taken["kept"] / taken["stateless"]
            if turn == 50:
                report.judge(f"turn {turn}, time / stateless prefill", ratio, "x", at_most=0.3)
            else:
                report.add(f"turn {turn}, time / stateless prefill", ratio, "x")
            for when in ("after a rollback", "after an interruption"):
                report.add(f"turn {turn}, right {when}", 1000 * taken[when], "ms")
        run(session.generate())
    report.judge("turn 50 / turn 2", kept_ms[50] / kept_ms[2], "x", at_most=2)


def _first_token_s(session: Session, model: HfModel, rounds: int) -> dict[str, float]:
    """Median seconds with what is kept, right after a rollback, right after an interruption, and stateless.

    Leaves the session as it was.
    """
    taken: dict[str, list[float]] = {}

    def measure(name: str, run: Callable[[], object]) -> None:
        taken.setdefault(name, []).append(_timed(run))

    for i in range(rounds + 1):
        # The question has to be new: neither it nor a reply to it may be in the cache.
        session.drop()
        session.add([_question(i)])
        session.snapshot()
        measure("kept", lambda: _first_chunk(session))
        prompt = list(session.tokens[: session.usage.input_tokens])
        session.rollback()
        session.add([_question(i + 1)])
        session.snapshot()
        measure("after a rollback", lambda: _first_chunk(session))
        session.rollback()
        session.snapshot()
        _take(session.generate(must_speak=True), REPLY_TOKENS // 2)
        session.heard(20)
        session.add([_question(i + 2)])
        measure("after an interruption", lambda: _first_chunk(session))
        session.rollback()
        measure("stateless", lambda tokens=prompt: model.extend(model.new_cache(), tokens))
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def _take(work: Generator[Any, None, Any], n: int) -> None:
    """Lets it make n yields, then closes it."""
    with closing(work):
        for _ in zip(range(n), work, strict=False):
            pass


def _first_chunk(session: Session) -> None:
    with closing(session.generate()) as chunks:
        next(chunk for chunk in chunks if chunk is not None)


def bench_context_drop(report: Report, model: HfModel) -> None:
    """What it costs when a full context loses its oldest turns."""
    report.title("a full context of 512 tokens")
    session = Session("full", model, context_tokens=512, settings=SETTINGS)
    usual_ms, dropping_ms, dropped = [], [], []
    for turn in range(60):
        session.add([_question(turn)])
        taken_ms = 1000 * _timed(lambda: _first_chunk(session))
        if session.usage.dropped_turns:
            dropping_ms.append(taken_ms)
            dropped.append(session.usage.dropped_turns)
        else:
            usual_ms.append(taken_ms)
    report.add("time to first token, as a rule", statistics.median(usual_ms), "ms")
    report.add("time to first token, when turns are given up", statistics.median(dropping_ms), "ms")
    report.add("turns given up at once", statistics.median(dropped), "turns")
    report.add("turns from one time to the next", 60 / len(dropping_ms), "turns")


# Going back


def bench_going_back(report: Report, model: HfModel, rounds: int) -> None:
    report.title("going back, and forking")
    for length in (100, 500, 2000):
        session = _session_of(model, length)
        step_ms = 1000 * _step_s(model, session, rounds)
        report.add(f"{length} tokens: one decode step", step_ms, "ms")
        tokens = session.tokens
        cache = model.new_cache()
        model.extend(cache, tokens)
        fork_ms = 1000 * interleaved_s({"fork": lambda c=cache: model.fork(c)}, 4 * rounds)["fork"]
        crop_ms = 1000 * _crop_s(model, cache, rounds)
        report.judge(f"{length} tokens: the cache's fork / decode step", fork_ms / step_ms, "x", at_most=0.1)
        report.judge(f"{length} tokens: the cache's crop / decode step", crop_ms / step_ms, "x", at_most=0.1)
        session_fork_ms = 1000 * interleaved_s({"fork": lambda s=session: s.fork("other")}, 4 * rounds)["fork"]
        report.add(f"{length} tokens: fork of a session", session_fork_ms, "ms")
        if length > 200:
            rollback_ms, heard_ms = _going_back_ms(model, length, rounds)
            report.judge(f"{length} tokens: rollback of 200 / decode step", rollback_ms / step_ms, "x", at_most=1)
            report.judge(f"{length} tokens: heard-cut of 200 / decode step", heard_ms / step_ms, "x", at_most=1)


def _session_of(model: HfModel, tokens: int, name: str = "long") -> Session:
    """A session that holds about so many tokens, in turns."""
    settings = SETTINGS.model_copy(update={"generation": Generation(max_new_tokens=200)})
    session = Session(name, model, context_tokens=8192, settings=settings)
    turn = 0
    while len(session.history_tokens) < tokens:
        answer = ChatMessage(role="assistant", content="It is a good question, and I will think about it.")
        session.add([_question(turn), answer])
        turn += 1
    run(session.compute())
    return session


def _step_s(model: HfModel, session: Session, rounds: int) -> float:
    cache = model.new_cache()
    model.extend(cache, session.tokens)
    return interleaved_s({"step": lambda: model.extend(cache, [5])}, 4 * rounds)["step"]


def _crop_s(model: HfModel, cache: Any, rounds: int) -> float:
    taken = []
    for _ in range(4 * rounds):
        model.extend(cache, [5, 6, 7])
        taken.append(_timed(lambda: model.crop(cache, model.cache_length(cache) - 3)))
    return statistics.median(taken)


def _going_back_ms(model: HfModel, length: int, rounds: int) -> tuple[float, float]:
    """Of 200 tokens of a reply: rollback, and the cut to its first words."""
    rollbacks, cuts = [], []
    session = _session_of(model, length - 200)
    session.add([_question(0)])
    for _ in range(max(3, rounds // 2)):
        for times, go_back in ((rollbacks, session.rollback), (cuts, lambda: session.heard(10))):
            session.snapshot()
            run(session.generate(must_speak=True, generation=Generation(max_new_tokens=200, length_penalty=10)))
            times.append(_timed(go_back))
            session.rollback()
    return 1000 * statistics.median(rollbacks), 1000 * statistics.median(cuts)


# Many sessions


def bench_memory(report: Report, model: HfModel) -> None:
    report.title("memory of one session of 500 tokens")
    before_mb, sessions = resident_mb(), [_session_of(model, 500, f"memory {i}") for i in range(16)]
    report.add("by the process", (resident_mb() - before_mb) / len(sessions), "MB")
    report.add("by the cache", model.cache_bytes(sessions[0].cache_length) / 2**20, "MB")


def bench_side_by_side(report: Report, model: HfModel, rounds: int) -> None:
    report.title("sessions that take turns, a token each")
    rivals = {n: _Together(model, n) for n in (1, 2, 8)}
    interleaved_s({str(n): together.talk for n, together in rivals.items()}, rounds)
    for n, together in rivals.items():
        report.add(f"{n} at once: tokens of all together", statistics.median(together.speeds), "tokens/s")
        report.add(f"{n} at once: from one token of a session to its next", together.gap_ms, "ms")


class _Together:
    def __init__(self, model: HfModel, n: int) -> None:
        self._model, self._n = model, n
        self.speeds: list[float] = []
        self._gaps_s: list[float] = []

    @property
    def gap_ms(self) -> float:
        return 1000 * statistics.median(self._gaps_s)

    def talk(self) -> None:
        """One turn of each session."""
        pool = SessionPool(self._model, Limits(context_tokens=2048), settings=SETTINGS)
        works: dict[int, Generator[Any, None, Any]] = {}
        for i in range(self._n):
            session = pool.get(f"s{i}")
            session.add([_question(i)])
            works[i] = session.generate()
        began_s, tokens, latest_s = time.perf_counter(), 0, dict.fromkeys(works, 0.0)
        while works:
            for i, work in list(works.items()):
                is_token = next(work, "over")
                if is_token == "over":
                    del works[i]
                elif is_token is not None:
                    now_s, tokens = time.perf_counter(), tokens + 1
                    if latest_s[i]:
                        self._gaps_s.append(now_s - latest_s[i])
                    latest_s[i] = now_s
        self.speeds.append(tokens / (time.perf_counter() - began_s))


def bench_short_sessions(report: Report) -> None:
    report.title("1,000 short sessions in a row, with tiny weights")
    with tempfile.TemporaryDirectory() as folder:
        model = load(str(make_tiny_model(Path(folder))), "fp32")
        pool = SessionPool(model, Limits(context_tokens=2048), settings=SETTINGS)
        resident = []
        for i in range(1000):
            session = pool.get(f"s{i}")
            session.add([_question(i)])
            run(session.generate())
            pool.end(f"s{i}")
            resident.append(resident_mb())
        report.judge("resident memory after 1,000 more than after 100", resident[-1] - resident[99], "MB", at_most=5)
        report.judge("sessions and bytes of cache left behind", len(pool) + pool.used_bytes, "", at_most=0)


def _question(turn: int) -> ChatMessage:
    return ChatMessage(role="user", content=PROMPTS[turn % len(PROMPTS)])


def _timed(run: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    sys.exit(main())
