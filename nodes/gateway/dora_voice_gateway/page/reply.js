// The audio of one segment: what waits, and what was played of it.

import { FADE_SAMPLES, joined } from "./fade.js";

export class Reply {
  isComplete = false;
  played = 0;
  reported = 0;
  textEnd = null; // where in the reply's text that was played whole, in code points; null: the server doesn't say
  recent = new Float32Array(0); // the last samples that were played, as many as a fade takes
  queued = 0; // samples that have not been played yet
  starved = 0; // for how many samples it has had nothing to play, while another reply waits
  #pieces = [];
  #offset = 0; // samples already played of the first piece

  constructor(isHeld) {
    this.isHeld = isHeld; // speculative: it isn't played before its commit
  }

  add(samples, textEnd) {
    if (textEnd && this.textEnd === null) this.textEnd = 0;
    if (!samples.length) return;
    this.#pieces.push({ samples, textEnd });
    this.queued += samples.length;
  }

  /** The next `count` samples, or as many as there are, without playing them. */
  upcoming(count) {
    const parts = [];
    let start = this.#offset;
    for (const { samples } of this.#pieces) {
      if (!count) break;
      parts.push(samples.subarray(start, start + count));
      start = 0;
      count -= parts.at(-1).length;
    }
    return joined(...parts);
  }

  /** Fills `sound` with the next samples, or as many as there are, and says how many. */
  play(sound) {
    let count = 0;
    while (this.#pieces.length && count < sound.length) count += this.#playOfPiece(sound.subarray(count));
    if (count) {
      this.starved = 0;
      this.queued -= count;
      this.played += count;
      this.recent = joined(this.recent, sound.subarray(0, count)).slice(-FADE_SAMPLES);
    }
    return count;
  }

  #playOfPiece(sound) {
    const { samples, textEnd } = this.#pieces[0];
    const part = samples.subarray(this.#offset, this.#offset + sound.length);
    sound.set(part);
    this.#offset += part.length;
    if (this.#offset === samples.length) {
      this.#pieces.shift();
      this.#offset = 0;
      if (textEnd) this.textEnd = textEnd;
    }
    return part.length;
  }
}
