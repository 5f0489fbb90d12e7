"""The page in a real browser, with a gateway that says what each test tells it to."""

import re
from contextlib import contextmanager

import numpy as np
import pytest
from gateway.browser import ALLOWED, DEVICE, launched, record, recorded
from gateway.page_server import FIN, SPECULATIVE, PageServer
from playwright.sync_api import expect, sync_playwright

STORY = "Once upon a time there was a robot."
STEP = 2.0**-17
"""Samples of a reply count up by it: whatever is heard says where it was in the reply."""
LONG = 120_000

expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def playwright():
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright):
    with launched(playwright, ALLOWED, DEVICE) as browser:
        yield browser


@pytest.fixture
def server():
    with PageServer() as server:
        yield server


@contextmanager
def opened(browser, url, script="", **options):
    """A page that must not complain on its console, but of a connection that is gone; `script` runs before its own."""
    context = browser.new_context(**options)
    context.add_init_script(script)
    page = context.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url)
    yield page
    context.close()
    assert [one for one in complaints if not one.startswith("WebSocket connection to")] == []


@pytest.fixture
def page(browser, server):
    with opened(browser, server.url) as page:
        expect(state(page)).to_have_text("Ready")
        server.expect(type="begin", sample_rate=16000)
        yield page


def state(page):
    return page.locator("#state")


def talk(page, server):
    page.get_by_role("button", name="Start talking").click()
    expect(state(page)).to_have_text("Listening")
    server.expect_audio(server.audio_bytes + 10 * 320 * 4)


def hear(server, segment_id, text):
    server.say(
        {"type": "speech_started", "segment_id": segment_id},
        {"type": "hypothesis", "segment_id": segment_id, "text": text.rstrip(".?!")},
        {"type": "transcript", "segment_id": segment_id, "text": text},
    )


def answer(server, segment_id, *fragments):
    for index, fragment in enumerate(fragments):
        fin = index == len(fragments) - 1
        server.say({"type": "reply", "segment_id": segment_id, "text_delta": fragment, "fin": fin})


def counting(samples):
    return (np.arange(samples, dtype=np.float32) + 1) * STEP


def heard_steps(page):
    """What was heard, in steps, without silence."""
    heard = recorded(page) / STEP
    return heard[heard != 0]


def counted(heard, first):
    """How far it counts from `first` on, at full level and without a gap."""
    start = next(int(at) for at in np.flatnonzero(heard == first) if heard[at + 1] == first + 1)
    steps = np.flatnonzero(np.diff(heard[start:]) != 1)
    return first + int(steps[0]) if len(steps) else int(heard[-1])


def test_a_turn_is_shown_as_it_comes(page, server):
    talk(page, server)
    server.say({"type": "speech_started", "segment_id": 1})
    expect(state(page)).to_have_text("Hearing you")
    server.say({"type": "hypothesis", "segment_id": 1, "text": "A story"})
    expect(page.locator(".user.guess")).to_have_text("A story")
    server.say({"type": "transcript", "segment_id": 1, "text": "A story, please."})
    server.expect_audio(server.audio_bytes + 60 * 320 * 4)  # the device that the browser invents beeps once a second
    server.verb("commit", 1)
    expect(state(page)).to_have_text("Thinking")
    expect(page.locator(".user:not(.guess)")).to_have_text("A story, please.")
    answer(server, 1, "Once upon a time ", "there was a robot.")
    expect(page.locator(".reply")).to_have_text(STORY)
    server.play(1, counting(60_000), FIN)
    expect(state(page)).to_have_text("Speaking")
    server.say({"type": "timing", "segment_id": 1, "first_audio_ms": 320})
    expect(page.locator(".marks")).to_have_text(re.compile(r"answered after \d+\.\d+ s · server 0.32 s"))
    expect(state(page)).to_have_text("Listening")
    assert server.expect(type="played", fin=True) == {"type": "played", "segment_id": 1, "samples": 60_000, "fin": True}
    reports = [one["samples"] for one in server.received if one["type"] == "played"]
    assert len(reports) >= 20
    assert reports == sorted(reports)


@pytest.fixture
def recorded_page(browser, server):
    with opened(browser, server.url, bypass_csp=True) as page:
        expect(state(page)).to_have_text("Ready")
        record(page)
        yield page


def test_what_is_heard_holds_and_goes_on_at_the_very_sample(recorded_page, server):
    page = recorded_page
    talk(page, server)
    hear(server, 1, "A story.")
    server.verb("commit", 1)
    server.play(1, counting(72_000), FIN)
    server.expect(type="played", segment_id=1, fin=False)
    server.verb("pause", 1)
    expect(state(page)).to_have_text("Paused, hearing you")
    server.verb("resume", 1)
    assert server.expect(type="played", fin=True)["samples"] == 72_000
    heard = heard_steps(page)
    held = counted(heard, 1)
    assert held < 72_000
    assert held in [one["samples"] for one in server.received if one["type"] == "played"]
    assert counted(heard, held + 1) == 72_000


def test_an_interruption_silences_and_shows_what_was_heard(recorded_page, server):
    page = recorded_page
    talk(page, server)
    hear(server, 1, "A story.")
    server.verb("commit", 1)
    answer(server, 1, STORY)
    server.play(1, counting(96_000), text_end=16)
    server.play(1, counting(LONG)[96_000:], text_end=35)
    server.expect(type="played", segment_id=1)
    server.say({"type": "speech_started", "segment_id": 2})
    server.verb("flush", 2)
    last = server.expect(type="played", segment_id=1, fin=True)
    assert last["samples"] < LONG
    expect(page.locator(".reply s").first).to_have_text(STORY[16:])
    expect(page.locator(".marks").first).to_contain_text(re.compile(r"interrupted after \d\.\d s"))
    expect(state(page)).to_have_text("Hearing you")
    server.play(1, counting(2_000))
    server.verb("commit", 2)
    server.play(2, counting(480), FIN)
    server.expect(type="played", segment_id=2, fin=True)
    assert counted(heard_steps(page), 1) == last["samples"]


def test_speculative_audio_waits_for_its_commit_and_a_false_alarm_leaves_nothing(page, server):
    talk(page, server)
    hear(server, 1, "I would like")
    answer(server, 1, "What would you like?")
    server.play(1, counting(2_400), FIN | SPECULATIVE)
    server.verb("drop", 1)
    server.say({"type": "speech_started", "segment_id": 2, "continues": 1})
    expect(page.locator(".user.guess")).to_have_text("I would like")
    server.say({"type": "transcript", "segment_id": 2, "text": "I would like a coffee."})
    server.play(2, counting(2_400), FIN | SPECULATIVE)
    answer(server, 2, "With milk?")
    expect(page.locator(".user")).to_have_text("I would like a coffee.")
    expect(page.locator(".reply")).to_be_hidden()
    server.verb("commit", 2)
    assert server.expect(type="played", segment_id=2, fin=True)["samples"] == 2_400
    expect(page.locator(".reply")).to_have_text("With milk?")
    assert server.expect(type="played", fin=True)["segment_id"] == 1  # was cut, unheard


def test_typing_needs_no_microphone(page, server):
    page.get_by_role("switch", name="Speak the answer").uncheck()
    page.get_by_label("Or type a message").fill("Hello <b>robot</b>")
    page.get_by_role("button", name="Send").click()
    server.expect(type="text", text="Hello <b>robot</b>", speak=False)
    expect(page.locator(".user")).to_have_text("Hello <b>robot</b>")
    expect(state(page)).to_have_text("Thinking")
    answer(server, 1, "Hello!")
    expect(page.locator(".reply")).to_have_text("Hello!")
    expect(state(page)).to_have_text("Ready")
    assert server.audio_bytes == 0


def test_everything_works_by_keyboard(page, server):
    page.keyboard.press("Space")
    expect(state(page)).to_have_text("Listening")
    server.expect_audio(320 * 4)
    page.keyboard.press("Space")
    expect(state(page)).to_have_text("Ready")
    page.get_by_label("Or type a message").focus()
    page.keyboard.type("Tell me more")
    page.keyboard.press("Enter")
    server.expect(type="text", text="Tell me more", speak=True)
    answer(server, 1, STORY)
    server.play(1, counting(LONG), FIN)
    expect(state(page)).to_have_text("Speaking")
    page.keyboard.press("Escape")
    server.expect(type="stop")
    assert server.expect(type="played", segment_id=1, fin=True)["samples"] < LONG
    expect(page.locator(".marks")).to_contain_text("interrupted")
    names = []
    page.get_by_role("heading").click()
    for _ in range(6):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert {"language", "conversation", "talk", "text", "send", "speak"} == set(names)


def test_a_microphone_that_is_switched_off_ends_in_two_seconds_of_silence(page, server):
    talk(page, server)
    page.get_by_role("button", name="Turn off microphone").click()
    expect(state(page)).to_have_text("Ready")
    server.expect_audio(server.audio_bytes + 90 * 320 * 4)


def test_a_browser_that_keeps_to_the_rate_of_the_microphone_says_it(browser, server):
    script = """
        const join = AudioContext.prototype.createMediaStreamSource;
        AudioContext.prototype.createMediaStreamSource = function (stream) {
            if (this.sampleRate === 16000) throw new DOMException("different sample-rate", "NotSupportedError");
            return join.call(this, stream);
        };"""
    with opened(browser, server.url, script) as page:
        server.expect(type="begin", sample_rate=16000)
        page.get_by_role("button", name="Start talking").click()
        assert server.expect(type="begin")["sample_rate"] in (44100, 48000)
        expect(state(page)).to_have_text("Listening")
        server.expect_audio(server.audio_bytes + 48000)


def test_a_microphone_that_is_taken_away_is_missed(browser, server):
    script = """
        const ask = MediaDevices.prototype.getUserMedia;
        MediaDevices.prototype.getUserMedia = async function (...wanted) {
            return (window.stream = await ask.apply(this, wanted));
        };"""
    with opened(browser, server.url, script) as page:
        talk(page, server)
        page.evaluate("window.stream.getAudioTracks()[0].dispatchEvent(new Event('ended'))")
        expect(page.get_by_role("alert")).to_contain_text("was taken away")
        expect(state(page)).to_have_text("Ready")
        talk(page, server)
        expect(page.get_by_role("alert")).to_be_empty()


def test_it_connects_again_by_itself(page, server):
    hear(server, 1, "Hello.")
    server.verb("commit", 1)
    answer(server, 1, "Hi")
    expect(page.locator(".reply")).to_have_text("Hi")
    server.welcome.insert(0, {"type": "queued", "position": 2})
    ready = server.welcome.pop()
    server.hang_up(1012)
    expect(page.get_by_role("alert")).to_contain_text("The server doesn’t answer")
    server.expect(type="begin")
    expect(state(page)).to_have_text("Waiting: number 2 in the queue")
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    server.say(ready)
    expect(state(page)).to_have_text("Ready")
    hear(server, 1, "Again.")
    server.verb("commit", 1)
    expect(page.locator(".user")).to_have_text(["Hello.", "Again."])
    expect(page.locator(".session")).to_have_count(1)
    server.play(1, counting(480), FIN)
    server.expect(type="played", segment_id=1, samples=480, fin=True)


def test_a_server_that_is_not_there_is_waited_for(browser):
    with PageServer() as server:
        context = opened(browser, server.url)
        page = context.__enter__()
        expect(state(page)).to_have_text("Ready")
    expect(page.get_by_role("alert")).to_contain_text("Trying again in 2 s")
    expect(page.get_by_role("button", name="Try now")).to_be_enabled()
    context.__exit__(None, None, None)


def test_a_conversation_that_the_server_ended_can_be_begun_again(page, server):
    server.say({"type": "error", "code": "idle", "error": "nobody spoke for ten minutes"}, {"type": "ended"})
    expect(state(page)).to_have_text("Conversation ended")
    expect(page.get_by_role("alert")).to_contain_text("nobody spoke for ten minutes (idle)")
    page.get_by_role("button", name="Connect").click()
    expect(state(page)).to_have_text("Ready")
    expect(page.get_by_role("alert")).to_be_empty()


def test_a_connection_that_the_server_closed_for_being_idle_is_not_opened_by_itself(page, server):
    server.hang_up(1000)
    expect(state(page)).to_have_text("Conversation ended")
    page.get_by_role("button", name="Connect").click()
    server.expect(type="begin")
    expect(state(page)).to_have_text("Ready")


def test_a_refused_token_is_asked_for(browser):
    with PageServer(token="secret") as server, opened(browser, server.url + "#token=wrong") as page:
        expect(state(page)).to_have_text("Not let in")
        expect(page.get_by_role("alert").locator("p")).to_have_text([re.compile("asks for a token")])
        page.get_by_label("Token").fill("secret")
        page.get_by_label("Token").press("Enter")
        expect(state(page)).to_have_text("Ready")
        expect(page.get_by_label("Token")).to_be_hidden()
        assert page.url.endswith("#token=secret")


@pytest.mark.parametrize(
    ("flags", "told"),
    [([DEVICE, "--deny-permission-prompts"], "doesn’t allow the microphone"), ([ALLOWED], "No microphone was found")],
    ids=["refused", "none there"],
)
def test_without_a_microphone_it_says_what_to_do_and_one_can_type(playwright, server, flags, told):
    with launched(playwright, *flags) as browser, opened(browser, server.url) as page:
        page.get_by_role("button", name="Start talking").click()
        expect(page.get_by_role("alert")).to_contain_text(told)
        expect(state(page)).to_have_text("Ready")
        page.get_by_label("Or type a message").fill("Hello")
        page.get_by_label("Or type a message").press("Enter")
        server.expect(type="text", text="Hello", speak=True)


def test_on_an_address_without_https_one_can_type_and_read(playwright, server):
    rules = "--host-resolver-rules=MAP robot.example 127.0.0.1"
    url = f"http://robot.example:{server.port}/"
    with launched(playwright, rules) as browser, opened(browser, url) as page:
        expect(page.get_by_role("alert")).to_contain_text("only over https or on localhost")
        page.get_by_role("button", name="Start talking").click()
        expect(page.get_by_role("alert").locator("p")).to_have_count(1)
        page.get_by_label("Or type a message").fill("Hello")
        page.get_by_label("Or type a message").press("Enter")
        server.expect(type="text", text="Hello", speak=False)
        answer(server, 1, "Hi!")
        expect(page.locator(".reply")).to_have_text("Hi!")


def test_it_speaks_chinese(browser, server):
    with opened(browser, server.url, locale="zh-CN") as page:
        expect(state(page)).to_have_text("就绪")
        assert page.title() == "语音对话"
        page.get_by_role("button", name="开始说话").click()
        expect(state(page)).to_have_text("正在听")
        page.get_by_role("button", name="English").click()
        expect(state(page)).to_have_text("Listening")
        page.reload()
        expect(state(page)).to_have_text("Ready")
        assert page.evaluate("document.documentElement.lang") == "en"


def test_a_screen_reader_is_told_whole_sentences(page, server):
    hear(server, 1, "A story.")
    server.verb("commit", 1)
    expect(page.locator("#announcement")).to_have_text("You: A story.")
    answer(server, 1, "Once upon ", "a time.")
    expect(page.locator("#announcement")).to_have_text("Robot: Once upon a time.")


CONTRASTS = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const luminance = (colour) => {
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (one) => {
        const colour = getComputedStyle(one).backgroundColor;
        return colour === "rgba(0, 0, 0, 0)" && one.parentElement ? ground(one.parentElement) : colour;
    };
    const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    return [...document.body.querySelectorAll("*")]
        .filter((one) => one.checkVisibility() && hasText(one) && !one.closest(":disabled"))
        .flatMap((one) => [[one, null], [one, "::before"]])
        .map(([one, part]) => {
            const [light, dark] = [getComputedStyle(one, part).color, ground(one)].map(luminance).sort((a, b) => b - a);
            return [one.className || one.id || one.tagName, (light + 0.05) / (dark + 0.05)];
        });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (360, 740)], ids=["desktop", "phone"])
def test_it_can_be_read_and_fits(browser, server, scheme, size):
    options = {"color_scheme": scheme, "viewport": {"width": size[0], "height": size[1]}}
    with opened(browser, server.url, **options) as page:
        expect(state(page)).to_have_text("Ready")
        hear(server, 1, "A story.")
        server.verb("commit", 1)
        answer(server, 1, STORY, " " + "Ohhh" * 60)
        server.verb("flush", 2)
        server.say({"type": "transcript", "segment_id": 1, "text": "A story."})
        hear(server, 2, "A very long question, " * 20)
        server.say({"type": "error", "code": "slow", "error": "the model is slow"})
        expect(page.get_by_role("alert")).to_contain_text("the model is slow (slow)")
        expect(page.locator(".user.guess")).to_be_visible()
        poor = [(name, ratio) for name, ratio in page.evaluate(CONTRASTS) if ratio < 4.5]
        assert poor == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        for name in ("talk", "stop", "text", "send", "language"):
            box = page.locator(f"#{name}").bounding_box()
            assert box["height"] >= 44
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= size[0]
