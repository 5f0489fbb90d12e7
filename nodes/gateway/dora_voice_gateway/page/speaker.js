// The page's loudspeaker: a playback worklet at the rate of the replies, and its level.

import { RATE_HZ } from "./playback.js";

export class Speaker {
  #context;
  #worklet;
  #samples = new Float32Array(512);

  /** Rejects with a SecurityError on a page without https: browsers have no audio worklets there. */
  static async open(onEvent) {
    if (!window.isSecureContext) throw new DOMException("no audio worklets here", "SecurityError");
    const context = new AudioContext({ sampleRate: RATE_HZ, latencyHint: "interactive" });
    await context.audioWorklet.addModule(new URL("playback-worklet.js", import.meta.url));
    return new Speaker(context, onEvent);
  }

  constructor(context, onEvent) {
    this.#context = context;
    this.#worklet = new AudioWorkletNode(context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
    this.#worklet.port.onmessage = ({ data }) => onEvent(data);
    this.output = new AnalyserNode(context, { fftSize: this.#samples.length });
    this.#worklet.connect(this.output).connect(context.destination);
  }

  /** Browsers let a page sound only after the user has done something on it. */
  wake() {
    if (this.#context.state !== "running") this.#context.resume();
  }

  play(piece) {
    this.#worklet.port.postMessage({ type: "audio", ...piece }, [piece.samples.buffer]);
  }

  control(verb, segmentId) {
    this.#worklet.port.postMessage({ type: verb, segmentId });
  }

  get level() {
    this.output.getFloatTimeDomainData(this.#samples);
    return levelOf(this.#samples);
  }

  /** How much later than it is rendered sound is heard. */
  get latencyMs() {
    return 1000 * (this.#context.outputLatency || this.#context.baseLatency || 0);
  }
}

/** In dB below full scale. */
export function levelOf(samples) {
  const energy = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
  return 10 * Math.log10(energy + 1e-10);
}
