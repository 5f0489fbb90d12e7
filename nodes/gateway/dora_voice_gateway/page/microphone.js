// The user's microphone, in pieces of 20 ms.

export const WANTED_RATE_HZ = 16000;
const PIECES_OF_SILENCE = 100; // 2 s after it was switched off, so that a sentence that was begun comes to its end
const CONSTRAINTS = { audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true } };

export class Microphone {
  #context;
  #worklet;
  #source;
  #stream;
  #silence = 0;
  #onPiece;
  #onLost;

  /** `onPiece(samples)` every 20 ms; `onLost()` when the device was taken away. */
  constructor(onPiece, onLost) {
    this.#onPiece = onPiece;
    this.#onLost = onLost;
  }

  get rateHz() {
    return this.#context?.sampleRate ?? WANTED_RATE_HZ;
  }

  get isOn() {
    return Boolean(this.#stream);
  }

  /** Rejects with a DOMException whose name says why: none there, refused, or a page without https. */
  async start() {
    if (!window.isSecureContext) throw new DOMException("no microphones here", "SecurityError");
    const stream = await navigator.mediaDevices.getUserMedia(CONSTRAINTS);
    try {
      this.#source = await this.#connected(stream);
    } catch (error) {
      release(stream);
      throw error;
    }
    this.#stream = stream;
    this.#silence = 0;
    stream.getAudioTracks()[0].onended = () => this.#onLost();
    await this.#context.resume();
  }

  stop() {
    this.#source.disconnect();
    release(this.#stream);
    this.#stream = null;
    this.#silence = PIECES_OF_SILENCE;
  }

  /** Some browsers join a microphone only to a context of its own rate. */
  async #connected(stream) {
    if (!this.#context) await this.#open(WANTED_RATE_HZ);
    try {
      return this.#join(stream);
    } catch (error) {
      if (error.name !== "NotSupportedError") throw error;
      this.#worklet.port.onmessage = null; // pieces that are on their way belong to no context any more
      await this.#context.close();
      await this.#open();
      return this.#join(stream);
    }
  }

  async #open(sampleRate) {
    const context = new AudioContext({ sampleRate, latencyHint: "interactive" });
    await context.audioWorklet.addModule(new URL("microphone-worklet.js", import.meta.url));
    this.#context = context;
    this.#worklet = new AudioWorkletNode(context, "microphone", { channelCount: 1, channelCountMode: "explicit" });
    this.#worklet.port.onmessage = ({ data }) => this.#give(data);
    this.#worklet.connect(context.destination); // its output is silent, but what leads nowhere isn't run
  }

  #join(stream) {
    const source = this.#context.createMediaStreamSource(stream);
    source.connect(this.#worklet);
    return source;
  }

  #give(samples) {
    if (!this.isOn && --this.#silence < 0) this.#context.suspend();
    else this.#onPiece(samples);
  }
}

function release(stream) {
  for (const track of stream.getTracks()) track.stop();
}
