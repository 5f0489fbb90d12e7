"""How many threads a model gets, on machines whose clock a test turns."""

import pytest

from dora_voice import threads


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({1: 1.05, 2: 1.0, 4: 0.2}, 1),
        ({1: 2.0, 2: 1.05, 4: 1.0}, 2),
        ({1: 2.0, 2: 1.5, 4: 1.0}, 4),
        ({1: 1.0, 2: 3.0, 4: 1.0}, 1),
    ],
)
def test_as_few_threads_are_taken_as_are_fast(monkeypatch, seconds, taken):
    clock = Clock()
    monkeypatch.setattr(threads, "cores", lambda: 4)
    monkeypatch.setattr(threads, "time", clock)

    def work(model):
        clock.now_s += seconds[model]

    assert threads.with_fewest_threads(lambda count: count, work) == taken


@pytest.mark.parametrize(("cores", "tried"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6])])
def test_no_more_threads_are_tried_than_there_are_cores(monkeypatch, cores, tried):
    made, clock = [], Clock()
    monkeypatch.setattr(threads, "cores", lambda: cores)
    monkeypatch.setattr(threads, "time", clock)

    def work(model):
        clock.now_s += 1 / model

    threads.with_fewest_threads(lambda count: made.append(count) or count, work)
    assert made == tried
