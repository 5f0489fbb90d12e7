// Runs the playback where the sound is rendered, so that what it reports is what was rendered.

import { Playback } from "./playback.js";

class PlaybackProcessor extends AudioWorkletProcessor {
  #playback = new Playback();
  #state = "silent";
  #segmentId = null;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => {
      if (data.type === "audio") this.#playback.add(data.segmentId, data.samples, data);
      else if (data.type === "reset") this.#playback = new Playback();
      else this.#playback.control(data.type, data.segmentId);
    };
  }

  process(_inputs, [[sound]]) {
    this.#playback.play(sound);
    for (const report of this.#playback.takeReports()) this.port.postMessage({ type: "played", ...report });
    this.#tellStatus();
    return true;
  }

  #tellStatus() {
    const { state, segmentId } = this.#playback.status;
    if (state === this.#state && segmentId === this.#segmentId) return;
    this.#state = state;
    this.#segmentId = segmentId;
    this.port.postMessage({ type: "playback", state, segmentId });
  }
}

registerProcessor("playback", PlaybackProcessor);
