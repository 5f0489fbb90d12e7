// Writes down every sample that comes to its inputs.

class Recorder extends AudioWorkletProcessor {
  process(inputs, [[block]]) {
    this.port.postMessage(inputs.map(([heard]) => heard?.slice() ?? new Float32Array(block.length)));
    return true;
  }
}

registerProcessor("recorder", Recorder);
