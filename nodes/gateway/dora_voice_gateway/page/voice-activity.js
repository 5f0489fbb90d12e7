// Whether a piece of 20 ms is clearly voice and not the noise of the room. Only times answers with it: where an
// utterance ends is for the server to say.

const FAINTEST_DB = -50;
const ABOVE_NOISE_DB = 12;
const NOISE_RISES_DB = 0.05; // per piece: 2.5 dB a second

export class VoiceActivity {
  #noiseDb = -60;

  isVoice(levelDb) {
    this.#noiseDb = Math.min(levelDb, this.#noiseDb + NOISE_RISES_DB);
    return levelDb > Math.max(FAINTEST_DB, this.#noiseDb + ABOVE_NOISE_DB);
  }
}
