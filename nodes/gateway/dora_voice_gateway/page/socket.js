// The connection to the gateway. It comes back by itself, later each time, unless it was refused or ended.

const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10_000;
const OPENING_MS = 10_000;
const MOST_BUFFERED_BYTES = 256_000; // 4 s of a microphone: what would come later than that is of no use
const ENDED = 1000; // close code: the server has waited for long enough
const REFUSED = [1008, 4401]; // close codes: policy, and our own for a wrong token
export const UNAUTHORIZED = "unauthorized";

export class Connection {
  #socket = null;
  #retryMs = FIRST_RETRY_MS;
  #timer = 0;
  #isReady = false;
  #onState;
  #onMessage;
  #onAudio;

  /** `onState(state, retryMs)`: "connecting", "gone", "refused" or "ended"; `onMessage(object)`; `onAudio(buffer)`. */
  constructor({ onState, onMessage, onAudio }) {
    this.#onState = onState;
    this.#onMessage = onMessage;
    this.#onAudio = onAudio;
  }

  /** Begins a new session with a microphone of that rate. */
  open(rateHz = this.rateHz) {
    this.close();
    this.rateHz = rateHz;
    this.#onState("connecting");
    const socket = new WebSocket(address());
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this.#opened();
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#message(JSON.parse(data)) : this.#onAudio(data));
    socket.onclose = ({ code }) => this.#closed(code);
    this.#socket = socket;
    this.#timer = setTimeout(() => this.#closed(), OPENING_MS);
  }

  close() {
    this.send({ type: "end" });
    this.#forget();
  }

  /** Nothing before the session is ready: what is left of the one before doesn't belong in it. */
  send(message) {
    if (this.#isReady) this.#socket.send(JSON.stringify(message));
  }

  /** Whether it was sent: not before the session is ready, nor when the network is too slow for it. */
  sendAudio(samples) {
    if (!this.#isReady) return true;
    const fits = this.#socket.bufferedAmount < MOST_BUFFERED_BYTES;
    if (fits) this.#socket.send(samples);
    return fits;
  }

  #opened() {
    clearTimeout(this.#timer);
    this.#socket.send(JSON.stringify({ type: "begin", sample_rate: this.rateHz }));
  }

  #message(message) {
    if (message.type === "ready") {
      this.#isReady = true;
      this.#retryMs = FIRST_RETRY_MS;
    }
    this.#onMessage(message);
    if (message.type === "ended") this.#forget();
    if (message.type === "error" && message.code === UNAUTHORIZED) this.#closed(REFUSED[0]);
  }

  #closed(code) {
    this.#forget();
    if (REFUSED.includes(code)) return this.#onState("refused");
    if (code === ENDED) return this.#onState("ended");
    this.#onState("gone", this.#retryMs);
    this.#timer = setTimeout(() => this.open(), this.#retryMs);
    this.#retryMs = Math.min(2 * this.#retryMs, LONGEST_RETRY_MS);
  }

  #forget() {
    clearTimeout(this.#timer);
    this.#isReady = false;
    if (!this.#socket) return;
    this.#socket.onclose = this.#socket.onmessage = this.#socket.onopen = null;
    this.#socket.close();
    this.#socket = null;
  }
}

function address() {
  const url = new URL("ws/voice", document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  url.hash = "";
  if (token()) url.searchParams.set("token", token());
  return url;
}

/** The token stands behind the # of the page's address: browsers send that to nobody. */
function token() {
  return new URLSearchParams(location.hash.slice(1)).get("token");
}

export function useToken(given) {
  history.replaceState(null, "", `#${new URLSearchParams({ token: given })}`);
}
