// Writes down every sample that the page gives out.

class Recorder extends AudioWorkletProcessor {
  process([[heard]]) {
    if (heard) this.port.postMessage(heard.slice());
    return true;
  }
}

registerProcessor("recorder", Recorder);
