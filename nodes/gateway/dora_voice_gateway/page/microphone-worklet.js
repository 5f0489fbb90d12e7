// Cuts what the microphone hears into pieces of 20 ms. Without a microphone it gives silence.

class MicrophoneProcessor extends AudioWorkletProcessor {
  #piece = new Float32Array(Math.round(sampleRate / 50));
  #length = 0;

  process([[heard]], [[block]]) {
    for (let position = 0; position < block.length; ) {
      const count = Math.min(block.length - position, this.#piece.length - this.#length);
      if (heard) this.#piece.set(heard.subarray(position, position + count), this.#length);
      position += count;
      this.#length += count;
      if (this.#length === this.#piece.length) this.#send();
    }
    return true;
  }

  #send() {
    this.port.postMessage(this.#piece, [this.#piece.buffer]);
    this.#piece = new Float32Array(Math.round(sampleRate / 50));
    this.#length = 0;
  }
}

registerProcessor("microphone", MicrophoneProcessor);
