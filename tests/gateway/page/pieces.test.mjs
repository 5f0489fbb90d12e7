// What comes from the wire and from the microphone, and what of a reply was heard.

import assert from "node:assert/strict";
import { test } from "node:test";

import { audioPiece } from "../../../nodes/gateway/dora_voice_gateway/page/audio-piece.js";
import { partsOf } from "../../../nodes/gateway/dora_voice_gateway/page/heard.js";
import { VoiceActivity } from "../../../nodes/gateway/dora_voice_gateway/page/voice-activity.js";

test("a piece of audio is read with its segment, flags and text", () => {
  const buffer = new ArrayBuffer(16 + 8);
  const view = new DataView(buffer);
  view.setBigUint64(0, 1000001n, true);
  view.setUint32(8, 3, true);
  view.setUint32(12, 42, true);
  view.setFloat32(16, 0.5, true);
  view.setFloat32(20, -1, true);
  const piece = audioPiece(buffer);
  assert.deepEqual(piece, {
    segmentId: 1000001,
    fin: true,
    speculative: true,
    textEnd: 42,
    samples: Float32Array.of(0.5, -1),
  });
});

test("voice stands out of the noise of the room", () => {
  const activity = new VoiceActivity();
  const noisy = Array.from({ length: 1000 }, () => activity.isVoice(-40));
  assert.ok(!noisy.at(-1), "steady noise is none");
  assert.ok(activity.isVoice(-20));
  assert.ok(!activity.isVoice(-70));
});

test("what was heard ends where a word, a number or a character does", () => {
  assert.deepEqual(partsOf("and humanity.", 6), ["and", " humanity."]);
  assert.deepEqual(partsOf("and humanity.", 12), ["and humanity", "."]);
  assert.deepEqual(partsOf("It costs 3.50 euros", 11), ["It costs", " 3.50 euros"]);
  assert.deepEqual(partsOf("I don’t know", 5), ["I", " don’t know"]);
  assert.deepEqual(partsOf("你好世界", 1), ["你", "好世界"]);
  assert.deepEqual(partsOf("Hi 👍🏽!", 4), ["Hi", " 👍🏽!"]);
  assert.deepEqual(partsOf("Hello", 0), ["", "Hello"]);
  assert.deepEqual(partsOf("Hello", 9), ["Hello", ""]);
});
