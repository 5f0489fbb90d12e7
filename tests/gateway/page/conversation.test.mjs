// What the page shows after what was said.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation } from "../../../nodes/gateway/dora_voice_gateway/page/conversation.js";

function begun({ isMicrophoneOn = true } = {}) {
  const conversation = new Conversation();
  conversation.receive({ type: "ready", session_id: "a" }, 0);
  conversation.isMicrophoneOn = isMicrophoneOn;
  return conversation;
}

function receive(conversation, ...messages) {
  for (const [type, segmentId, rest] of messages) conversation.receive({ type, segment_id: segmentId, ...rest }, 1000);
}

/** Of a user who was understood and is being answered aloud. */
function answering() {
  const conversation = begun();
  receive(
    conversation,
    ["speech_started", 1],
    ["transcript", 1, { text: "A story." }],
    ["commit", 1],
    ["reply", 1, { text_delta: "Once upon " }],
    ["reply", 1, { text_delta: "a time.", fin: true }],
  );
  conversation.playing({ state: "playing", segmentId: 1 }, 1500);
  return conversation;
}

const texts = (conversation) => conversation.turns.map((turn) => [turn.text, turn.reply]);

test("a turn goes from hearing to thinking to speaking to listening", () => {
  const conversation = begun();
  assert.equal(conversation.state, "listening");
  receive(conversation, ["speech_started", 1], ["hypothesis", 1, { text: "A" }]);
  assert.equal(conversation.state, "hearing");
  assert.ok(conversation.turns[0].isGuess);
  receive(conversation, ["transcript", 1, { text: "A story." }]);
  assert.ok(conversation.turns[0].isGuess, "it may still be dropped");
  receive(conversation, ["commit", 1]);
  assert.equal(conversation.state, "thinking");
  assert.ok(!conversation.turns[0].isGuess);
  receive(conversation, ["reply", 1, { text_delta: "Once.", fin: true }]);
  assert.equal(conversation.state, "thinking");
  conversation.playing({ state: "playing", segmentId: 1 }, 2000);
  assert.equal(conversation.state, "speaking");
  conversation.played({ segmentId: 1, samples: 2400, textEnd: null, fin: true, cut: false });
  conversation.playing({ state: "silent", segmentId: null }, 3000);
  assert.equal(conversation.state, "listening");
  assert.ok(!conversation.turns[0].isInterrupted);
});

test("a hypothesis is replaced whole, and not any more by one that is late", () => {
  const conversation = begun();
  receive(
    conversation,
    ["speech_started", 1],
    ["hypothesis", 1, { text: "Wreck a nice" }],
    ["hypothesis", 1, { text: "Recognise speech" }],
    ["transcript", 1, { text: "Recognise speech." }],
    ["hypothesis", 1, { text: "Recognise" }],
  );
  assert.deepEqual(texts(conversation), [["Recognise speech.", ""]]);
});

test("a pause shows until the reply goes on", () => {
  const conversation = answering();
  conversation.playing({ state: "paused", segmentId: 1 }, 1600);
  assert.equal(conversation.state, "paused");
  conversation.playing({ state: "playing", segmentId: 1 }, 1700);
  assert.equal(conversation.state, "speaking");
});

test("a flush interrupts, and what was heard is told from what was cut", () => {
  const conversation = answering();
  receive(conversation, ["speech_started", 2], ["flush", 2]);
  conversation.played({ segmentId: 1, samples: 4800, textEnd: 10, fin: true, cut: true });
  const [turn] = conversation.turns;
  assert.ok(turn.isInterrupted);
  assert.deepEqual(turn.parts, ["Once upon", " a time."]);
});

test("after a flush nothing more comes of the older segments", () => {
  const conversation = answering();
  receive(conversation, ["speech_started", 2], ["flush", 2], ["reply", 1, { text_delta: " They lived" }]);
  assert.equal(conversation.turns[0].reply, "Once upon a time.");
});

test("a reply that was heard to its end is not interrupted by a later flush", () => {
  const conversation = answering();
  conversation.played({ segmentId: 1, samples: 4800, textEnd: 17, fin: true, cut: false });
  receive(conversation, ["speech_started", 2], ["flush", 2]);
  assert.ok(!conversation.turns[0].isInterrupted);
});

test("heard text is counted in code points", () => {
  const conversation = begun();
  receive(conversation, ["speech_started", 1], ["commit", 1], ["reply", 1, { text_delta: "🙂🙂好的" }], ["flush", 2]);
  conversation.played({ segmentId: 1, samples: 4800, textEnd: 3, fin: true, cut: true });
  assert.deepEqual(conversation.turns[0].parts, ["🙂🙂好", "的"]);
});

test("a drop leaves nothing, and what comes late of it is ignored", () => {
  const conversation = begun();
  receive(conversation, ["speech_started", 1], ["hypothesis", 1, { text: "Hm" }], ["drop", 1]);
  receive(conversation, ["transcript", 1, { text: "Hm." }], ["reply", 1, { text_delta: "Yes?" }], ["commit", 1]);
  assert.deepEqual(conversation.turns, []);
  assert.equal(conversation.state, "listening");
});

test("a sentence that goes on keeps its words", () => {
  const conversation = begun();
  receive(conversation, ["speech_started", 1], ["transcript", 1, { text: "I would like" }], ["drop", 1]);
  receive(conversation, ["speech_started", 2, { continues: 1 }]);
  assert.deepEqual(texts(conversation), [["I would like", ""]]);
  receive(conversation, ["hypothesis", 2, { text: "I would like a coffee" }]);
  assert.deepEqual(texts(conversation), [["I would like a coffee", ""]]);
});

test("what was not understood says why, until the next turn", () => {
  const conversation = begun();
  receive(conversation, ["speech_started", 1], ["transcript", 1, { text: "", rejected: "noise" }]);
  assert.equal(conversation.turns[0].rejected, "noise");
  assert.equal(conversation.state, "listening");
  receive(conversation, ["speech_started", 2]);
  assert.equal(conversation.turns.length, 1);
});

test("typed text stands there at once and gets the reply of the next new segment", () => {
  const conversation = begun({ isMicrophoneOn: false });
  conversation.typed("Hello", true, 1000);
  assert.equal(conversation.state, "thinking");
  receive(conversation, ["transcript", 4, { text: "Hello" }], ["reply", 4, { text_delta: "Hi!", fin: true }]);
  assert.deepEqual(texts(conversation), [["Hello", "Hi!"]]);
  conversation.playing({ state: "playing", segmentId: 4 }, 1450);
  assert.equal(conversation.turns[0].answeredAfterMs, 450);
});

test("a typed turn without voice is over when its reply is written", () => {
  const conversation = begun({ isMicrophoneOn: false });
  conversation.typed("Hello", false, 1000);
  receive(conversation, ["reply", 1, { text_delta: "Hi!", fin: true }]);
  assert.equal(conversation.state, "idle");
});

test("an answer's latency counts from the last voice before the commit, and once", () => {
  const conversation = begun();
  conversation.receive({ type: "speech_started", segment_id: 1 }, 5000);
  conversation.voice(5600);
  conversation.receive({ type: "commit", segment_id: 1 }, 6000);
  conversation.voice(6100);
  conversation.playing({ state: "playing", segmentId: 1 }, 6200);
  conversation.playing({ state: "paused", segmentId: 1 }, 6300);
  conversation.playing({ state: "playing", segmentId: 1 }, 6900);
  assert.equal(conversation.turns[0].answeredAfterMs, 600);
});

test("no latency is told where no voice was clear", () => {
  const conversation = begun();
  conversation.voice(1000);
  conversation.receive({ type: "speech_started", segment_id: 1 }, 9000);
  conversation.receive({ type: "commit", segment_id: 1 }, 9900);
  conversation.playing({ state: "playing", segmentId: 1 }, 9950);
  assert.equal(conversation.turns[0].answeredAfterMs, null);
});

test("the user's stop names what it ends, and no more of it is shown", () => {
  const conversation = answering();
  assert.equal(conversation.stop(), 1);
  receive(conversation, ["reply", 1, { text_delta: " And then" }]);
  assert.equal(conversation.turns[0].reply, "Once upon a time.");
  assert.ok(conversation.turns[0].isInterrupted);
});

test("a failed reply ends the thinking and says so", () => {
  const conversation = begun();
  receive(conversation, ["speech_started", 1], ["transcript", 1, { text: "Hm?" }], ["commit", 1]);
  receive(conversation, ["reply", 1, { text_delta: "", fin: true, error: "model: out of memory" }]);
  assert.equal(conversation.turns[0].replyError, "model: out of memory");
  assert.equal(conversation.state, "listening");
});

test("what was said before a disconnection stays, its numbers begin anew", () => {
  const conversation = answering();
  receive(conversation, ["speech_started", 2], ["hypothesis", 2, { text: "Wai" }]);
  conversation.disconnected("gone");
  assert.equal(conversation.state, "gone");
  conversation.receive({ type: "queued", position: 2 }, 0);
  assert.deepEqual([conversation.state, conversation.position], ["queued", 2]);
  conversation.playing({ state: "silent", segmentId: null }, 1600);
  conversation.receive({ type: "ready", session_id: "b" }, 0);
  receive(conversation, ["speech_started", 1], ["hypothesis", 1, { text: "Again" }]);
  assert.deepEqual(texts(conversation), [["A story.", "Once upon a time."], ["Again", ""]]);
  assert.notEqual(conversation.turns[0].session, conversation.turns[1].session);
});

test("the oldest turns go when there are too many", () => {
  const conversation = begun();
  for (let segment = 1; segment <= 250; segment += 1) receive(conversation, ["speech_started", segment]);
  assert.equal(conversation.turns.length, 200);
});

test("messages that it doesn't know change nothing", () => {
  const conversation = begun();
  receive(conversation, ["something", 1], ["toString", 1], ["resume", 1]);
  assert.deepEqual(conversation.turns, []);
});
