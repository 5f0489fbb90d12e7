"""The page in a real browser, with the real dataflow and its real small models: a recording is its microphone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from gateway.browser import ALLOWED, AUDIBLE, DEVICE, OUTPUT_HZ, interrupted, launched, record, recorded
from gateway.serving import ROOT, Served
from listening import transcribed, word_errors
from playwright.sync_api import Playwright, expect, sync_playwright

RECORDING = ROOT / "tests/recordings/barge-in.wav"
TRUTH = json.loads(RECORDING.with_suffix(".json").read_text())["speech"]
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


def words_off(shown: str, sound: np.ndarray, folder: Path) -> tuple[int, int]:
    """Wrong words in what is heard, and words in all."""
    soundfile.write(folder / "heard.wav", sound, OUTPUT_HZ)
    return word_errors(shown, transcribed(folder / "heard.wav"))


def test_who_speaks_into_the_page_is_answered_and_may_interrupt(
    playwright: Playwright, real: Served, tmp_path: Path
) -> None:
    heard = interrupted(playwright, f"http://localhost:{real.port}/", RECORDING, TRUTH)
    print(f"silent {heard.silent_ms:.0f} ms after the onset of the interruption")
    assert len(heard.questions) == 2
    for truth, question in zip(TRUTH, heard.questions, strict=True):
        assert word_errors(truth["text"], question)[0] <= 2, question
    old, new = heard.replies
    # The old reply was being heard when it was interrupted, and had ended before the interruption had.
    before = heard.output[heard.onset - OUTPUT_HZ : heard.onset]
    assert np.abs(before).max() > AUDIBLE
    assert not np.abs(heard.old_sound[-OUTPUT_HZ // 4 :]).max() > AUDIBLE
    errors, words = words_off(old, heard.old_sound, tmp_path)
    assert errors <= max(2, words // 5)
    # Nothing of it afterwards: what is heard then is the answer, whole.
    errors, words = words_off(new, heard.new_sound, tmp_path)
    assert errors <= max(2, words // 5)


def test_what_is_typed_is_answered_aloud_or_in_writing(playwright: Playwright, real: Served, tmp_path: Path) -> None:
    with launched(playwright, ALLOWED, DEVICE) as browser:
        page = browser.new_page(bypass_csp=True)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"http://localhost:{real.port}/")
        expect(page.locator("#state")).to_have_text("Ready", timeout=PATIENCE_MS)
        record(page)
        text = page.get_by_label("Or type a message")
        text.fill("What is the capital of France?")
        text.press("Enter")
        expect(page.locator(".marks").first).to_contain_text("answered after", timeout=PATIENCE_MS)
        expect(page.locator("#state")).to_have_text("Ready", timeout=PATIENCE_MS)
        sound = recorded(page)
        page.get_by_role("switch", name="Speak the answer").uncheck()
        text.fill("What color is the sky?")
        text.press("Enter")
        expect(page.locator(".reply").nth(1)).to_contain_text("sky", timeout=PATIENCE_MS)
        expect(page.locator("#state")).to_have_text("Ready", timeout=PATIENCE_MS)
        assert not np.abs(recorded(page)[len(sound) :]).max() > AUDIBLE
        assert page.get_by_role("alert").inner_text() == ""
        reply = page.locator(".reply span").first.inner_text()
    assert "Paris" in reply
    errors, words = words_off(reply, sound, tmp_path)
    assert errors <= max(2, words // 5)
