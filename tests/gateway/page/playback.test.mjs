// What is heard of the replies, sample by sample.

import assert from "node:assert/strict";
import { test } from "node:test";

import { FADE_SAMPLES } from "../../../nodes/gateway/dora_voice_gateway/page/fade.js";
import { LONGEST_PAUSE, Playback, REPORT_SAMPLES } from "../../../nodes/gateway/dora_voice_gateway/page/playback.js";

const BLOCK = 128;

/** Samples that tell their position: 1, 2, 3 … of `first` on. */
const counting = (count, first = 1) => Float32Array.from({ length: count }, (_, index) => first + index);

function play(playback, count) {
  const sound = new Float32Array(count);
  for (let position = 0; position < count; position += BLOCK) playback.play(sound.subarray(position, position + BLOCK));
  return sound;
}

const finOf = (playback, segmentId) =>
  playback.takeReports().filter((report) => report.segmentId === segmentId && report.fin);

function fadedOutFrom(first) {
  return counting(FADE_SAMPLES, first).map((sample, index) => sample * (1 - (index + 1) / FADE_SAMPLES));
}

test("a reply is played as it came, then there is silence", () => {
  const playback = new Playback();
  playback.add(1, counting(300));
  playback.add(1, counting(200, 301), { fin: true });
  const sound = play(playback, 640);
  assert.deepEqual(sound.subarray(0, 500), counting(500));
  assert.ok(sound.subarray(500).every((sample) => sample === 0));
  assert.deepEqual(playback.takeReports(), [{ segmentId: 1, samples: 500, textEnd: null, fin: true, cut: false }]);
});

test("replies are played in order, one right after the other", () => {
  const playback = new Playback();
  playback.add(1, counting(200), { fin: true });
  playback.add(2, counting(200, 1001), { fin: true });
  assert.deepEqual(play(playback, 400), Float32Array.from([...counting(200), ...counting(200, 1001)]));
});

test("the second reply waits while more of the first is to come", () => {
  const playback = new Playback();
  playback.add(1, counting(100));
  playback.add(2, counting(100, 1001), { fin: true });
  assert.equal(play(playback, 256).at(-1), 0);
  playback.add(1, counting(100, 101), { fin: true });
  assert.deepEqual(play(playback, 200), Float32Array.from([...counting(100, 101), ...counting(100, 1001)]));
});

test("a first reply whose end never comes is given up after ten seconds", () => {
  const playback = new Playback();
  playback.add(1, counting(100));
  playback.add(2, counting(100, 1001), { fin: true });
  play(playback, 10 * 24000 + 2 * BLOCK);
  assert.deepEqual(finOf(playback, 1), [{ segmentId: 1, samples: 100, textEnd: null, fin: true, cut: true }]);
  playback.add(1, counting(100, 101));
  assert.ok(!play(playback, 512).includes(101));
});

test("it is reported every 100 ms what was rendered, and no more", () => {
  const playback = new Playback();
  playback.add(7, counting(10 * REPORT_SAMPLES));
  play(playback, 2 * REPORT_SAMPLES + BLOCK);
  const samples = playback.takeReports().map((report) => report.samples);
  assert.equal(samples.length, 2);
  assert.ok(samples.every((count, index) => count >= (index + 1) * REPORT_SAMPLES && count % BLOCK === 0));
});

test("after a pause it goes on at the very sample where it held", () => {
  const playback = new Playback();
  playback.add(1, counting(4000));
  assert.deepEqual(play(playback, 1024), counting(1024));
  playback.control("pause", 1);
  const held = play(playback, 1024);
  assert.deepEqual(held.subarray(0, FADE_SAMPLES), fadedOutFrom(1025));
  assert.ok(held.subarray(FADE_SAMPLES).every((sample) => sample === 0));
  const report = { segmentId: 1, samples: 1024, textEnd: null, fin: false, cut: false };
  assert.deepEqual(playback.takeReports(), [report]);
  assert.deepEqual(playback.status, { state: "paused", segmentId: 1 });
  playback.control("resume", 1);
  const resumed = play(playback, 1024);
  const repeated = counting(FADE_SAMPLES, 1025 - FADE_SAMPLES).map((sample, index) => (sample * index) / FADE_SAMPLES);
  assert.deepEqual(resumed.subarray(0, FADE_SAMPLES), repeated);
  assert.deepEqual(resumed.subarray(FADE_SAMPLES), counting(1024 - FADE_SAMPLES, 1025));
});

test("pausing again and again loses no sample and plays none twice at its full level", () => {
  const playback = new Playback();
  playback.add(1, counting(5000), { fin: true });
  const heard = [];
  for (let length = BLOCK; length < 1100; length += BLOCK) {
    heard.push(...play(playback, length));
    playback.control("pause", 1);
    play(playback, 2 * BLOCK + length);
    playback.control("resume", 1);
    play(playback, Math.min(FADE_SAMPLES, heard.length)); // the fade in, to its end
  }
  heard.push(...play(playback, 5000));
  assert.deepEqual(heard.filter(Boolean), [...counting(5000)]);
});

test("a pause may come before its reply", () => {
  const playback = new Playback();
  playback.control("pause", 3);
  playback.add(3, counting(256), { fin: true });
  assert.ok(play(playback, 512).every((sample) => sample === 0));
  playback.control("resume", 3);
  assert.deepEqual(play(playback, 256), counting(256));
});

test("a pause ends by itself", () => {
  const playback = new Playback();
  playback.add(1, counting(2048));
  play(playback, 1024);
  playback.control("pause", 1);
  const held = play(playback, LONGEST_PAUSE);
  assert.ok(held.subarray(FADE_SAMPLES).every((sample) => sample === 0));
  assert.deepEqual(play(playback, 1024).subarray(FADE_SAMPLES, FADE_SAMPLES + 700), counting(700, 1025));
  assert.equal(playback.status.state, "playing");
});

test("a flush fades the older ones out, empties them and reports them for the last time", () => {
  const playback = new Playback();
  playback.add(1, counting(4000));
  playback.add(2, counting(4000, 5001));
  play(playback, 512);
  playback.control("flush", 3);
  const rest = play(playback, 1024);
  assert.deepEqual(rest.subarray(0, FADE_SAMPLES), fadedOutFrom(513));
  assert.ok(rest.subarray(FADE_SAMPLES).every((sample) => sample === 0));
  assert.deepEqual(playback.takeReports(), [
    { segmentId: 1, samples: 512, textEnd: null, fin: true, cut: true },
    { segmentId: 2, samples: 0, textEnd: null, fin: true, cut: true },
  ]);
});

test("what comes late after a flush is not heard, what is newer is", () => {
  const playback = new Playback();
  playback.control("flush", 5);
  playback.add(4, counting(256), { fin: true });
  playback.add(5, counting(256, 1001), { fin: true });
  assert.deepEqual(play(playback, 256), counting(256, 1001));
  assert.deepEqual(finOf(playback, 4), []);
});

test("a new reply begins when the old one has faded", () => {
  const playback = new Playback();
  playback.add(1, counting(4000));
  play(playback, 512);
  playback.control("flush", 2);
  playback.add(2, counting(256, 9001), { fin: true });
  const sound = play(playback, 512);
  assert.deepEqual(sound.subarray(0, FADE_SAMPLES), fadedOutFrom(513));
  assert.deepEqual(sound.subarray(FADE_SAMPLES, FADE_SAMPLES + 256), counting(256, 9001));
});

test("a paused reply that is flushed stays silent", () => {
  const playback = new Playback();
  playback.add(1, counting(4000));
  play(playback, 512);
  playback.control("pause", 1);
  play(playback, 512);
  playback.control("flush", 2);
  playback.control("resume", 1);
  assert.ok(play(playback, 512).every((sample) => sample === 0));
});

test("a drop cuts exactly its segment", () => {
  const playback = new Playback();
  playback.add(1, counting(128), { fin: true });
  playback.add(2, counting(128, 1001), { fin: true });
  playback.add(3, counting(128, 2001), { fin: true });
  playback.control("drop", 2);
  playback.add(2, counting(128, 1129));
  assert.deepEqual(play(playback, 256), Float32Array.from([...counting(128), ...counting(128, 2001)]));
});

test("speculative audio is held until its commit, and with it what comes behind", () => {
  const playback = new Playback();
  playback.add(1, counting(256), { speculative: true, fin: true });
  playback.add(2, counting(256, 1001), { fin: true });
  assert.ok(play(playback, 512).every((sample) => sample === 0));
  assert.equal(playback.status.state, "silent");
  playback.control("commit", 1);
  assert.deepEqual(play(playback, 512), Float32Array.from([...counting(256), ...counting(256, 1001)]));
});

test("a commit that was faster than the audio counts", () => {
  const playback = new Playback();
  playback.control("commit", 1);
  playback.add(1, counting(128), { speculative: true, fin: true });
  assert.deepEqual(play(playback, 128), counting(128));
});

test("a reply without a sample is over at once", () => {
  const playback = new Playback();
  playback.add(1, new Float32Array(0), { fin: true });
  play(playback, BLOCK);
  assert.deepEqual(playback.takeReports(), [{ segmentId: 1, samples: 0, textEnd: null, fin: true, cut: false }]);
});

test("where the text is, is known of pieces that were played whole", () => {
  const playback = new Playback();
  playback.add(1, counting(480), { textEnd: 4 });
  playback.add(1, counting(480), { textEnd: 9 });
  play(playback, 640);
  playback.control("flush", 2);
  assert.equal(finOf(playback, 1)[0].textEnd, 4);
});
