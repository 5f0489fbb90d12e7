"""A real browser on the page, its microphone a recording, and what it gives out written down."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Browser, Page, Playwright, expect

from dora_voice.audio import resample

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ALWAYS = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
ALLOWED, DEVICE = "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"
RECORDER = Path(__file__).parent / "page/recorder-worklet.js"
OUTPUT_HZ = 24_000
AUDIBLE = 1e-3
PATIENCE_MS = 120_000

RECORD = """async (program) => {
    const { output } = window.doraVoice;
    const module = new Blob([program], { type: "text/javascript" });
    await output.context.audioWorklet.addModule(URL.createObjectURL(module));
    const recorder = new AudioWorkletNode(output.context, "recorder", { numberOfInputs: 2 });
    window.recorded = [[], []];
    recorder.port.onmessage = ({ data }) => data.forEach((block, input) => window.recorded[input].push(block));
    output.connect(recorder, 0, 0);
    recorder.connect(output.context.destination);
    const ask = MediaDevices.prototype.getUserMedia;
    MediaDevices.prototype.getUserMedia = async function (...wanted) {
        const stream = await ask.apply(this, wanted);
        output.context.createMediaStreamSource(stream).connect(recorder, 0, 1);
        return stream;
    };
}"""
"""Output and microphone of the page, on the clock of its output."""

RECORDED = """async (input) => {
    const reader = new FileReader();
    reader.readAsDataURL(new Blob(window.recorded[input]));
    await new Promise((resolve) => (reader.onload = resolve));
    return reader.result.split(",")[1];
}"""


def launched(playwright: Playwright, *flags: str) -> Browser:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.fail(f"none of {', '.join(BROWSERS)} is installed. Run: sudo apt-get install chromium")
    return playwright.chromium.launch(executable_path=program, args=[*ALWAYS, *flags])


def record(page: Page) -> None:
    """From now on; the microphone, once it is on. The page's policy must be bypassed: it takes no scripts of others."""
    page.evaluate(RECORD, RECORDER.read_text())


def recorded(page: Page, of: int = 0) -> np.ndarray:
    """24 kHz. 0: the output, 1: the microphone."""
    return np.frombuffer(base64.b64decode(page.evaluate(RECORDED, of)), "<f4")


@dataclass(frozen=True, slots=True)
class Interruption:
    """What was said through the page, and shown on it, when its second question interrupted the first reply.

    Positions are samples of `output`.
    """

    output: np.ndarray
    onset: int
    """Where the second question begins in what the microphone heard, on the output's clock."""
    end: int
    questions: Sequence[str]
    replies: Sequence[str]
    """Without what was cut off."""

    @property
    def old_sound(self) -> np.ndarray:
        """What is heard before the second question is over."""
        return self.output[: self.end]

    @property
    def new_sound(self) -> np.ndarray:
        return self.output[self.end :]

    @property
    def silent_ms(self) -> float:
        """From the onset to the last sample of the old reply; negative if it had ended before."""
        last = int(np.flatnonzero(np.abs(self.old_sound) > AUDIBLE)[-1])
        return (last - self.onset) * 1000 / OUTPUT_HZ


def interrupted(playwright: Playwright, url: str, recording: Path, truth: Sequence[dict[str, float]]) -> Interruption:
    """Plays a recording of two utterances into the page's microphone."""
    with launched(playwright, ALLOWED, DEVICE, f"--use-file-for-fake-audio-capture={recording}%noloop") as browser:
        page = browser.new_page(bypass_csp=True)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        state = page.locator("#state")
        expect(state).to_have_text("Ready", timeout=PATIENCE_MS)
        record(page)
        page.get_by_role("button", name="Start talking").click()
        expect(page.locator(".interruption").first).to_contain_text("interrupted", timeout=PATIENCE_MS)
        expect(page.locator(".marks").nth(1)).to_contain_text("answered after", timeout=PATIENCE_MS)
        expect(state).to_have_text("Listening", timeout=PATIENCE_MS)
        # Of the first reply, what is not struck through.
        replies = page.locator(".reply span").all_inner_texts()
        questions = page.locator(".user").all_inner_texts()
        output, microphone = recorded(page, 0), recorded(page, 1)
    onset, end = _found(microphone, recording, truth[1]["start_s"], truth[1]["end_s"])
    return Interruption(output, onset, end, questions, replies)


def _found(microphone: np.ndarray, recording: Path, begin_s: float, end_s: float) -> tuple[int, int]:
    """Where this part of a recording begins and ends in what the microphone heard: where it is most alike."""
    samples, rate = soundfile.read(recording, dtype="float32")
    part = resample(samples[round(begin_s * rate) : round(end_s * rate)], rate, OUTPUT_HZ)
    size = len(microphone) + len(part)
    alike = np.fft.irfft(np.fft.rfft(microphone, size) * np.conj(np.fft.rfft(part, size)), size)
    begin = int(np.argmax(np.abs(alike[: len(microphone)])))
    return begin, begin + len(part)
