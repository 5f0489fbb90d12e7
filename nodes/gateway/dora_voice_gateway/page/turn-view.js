// One exchange as it is shown.

import { RATE_HZ } from "./playback.js";

export class TurnView {
  #user = element("p", "user");
  #reply = element("p", "reply");
  #said = element("span");
  #cut = element("s");
  #marks = element("p", "marks");
  #latency = element("span");
  #interruption = element("span", "interruption");
  #session = element("p", "session");

  constructor(turn, isFirstOfSession) {
    this.turn = turn;
    this.element = element("li", "turn");
    this.#reply.append(this.#said, this.#cut);
    this.#marks.append(this.#latency, this.#interruption);
    for (const words of [this.#user, this.#reply]) words.dir = "auto";
    if (isFirstOfSession) this.element.append(this.#session);
    this.element.append(this.#user, this.#reply, this.#marks);
  }

  render(words) {
    const { turn } = this;
    show(this.#session, words.newConversation);
    show(this.#user, userText(turn, words));
    this.#user.dataset.who = words.you;
    this.#user.classList.toggle("guess", turn.isGuess);
    this.#user.classList.toggle("not-understood", turn.rejected !== null || Boolean(turn.error));
    this.#renderReply(words);
    show(this.#latency, latencyText(turn, words));
    show(this.#interruption, interruptionText(turn, words));
  }

  /** Before the commit there is no reply: its question may still be dropped. */
  #renderReply(words) {
    const [said, cut] = this.turn.isCommitted ? this.turn.parts : ["", ""];
    const error = this.turn.replyError ? words.failed(this.turn.replyError) : "";
    show(this.#said, [said, error].filter(Boolean).join(" "));
    show(this.#cut, cut);
    this.#reply.hidden = !said && !cut && !error;
    this.#reply.dataset.who = words.robot;
    this.#reply.classList.toggle("failed", Boolean(error));
  }
}

function userText(turn, words) {
  // What follows the colon are numbers for the log.
  if (turn.rejected !== null) return words.notUnderstood(turn.rejected.split(":")[0]);
  if (turn.error) return words.failed(turn.error);
  return turn.text || (turn.isGuess ? "…" : "");
}

function latencyText(turn, words) {
  const parts = [];
  if (turn.answeredAfterMs !== null) parts.push(words.answeredAfter(turn.answeredAfterMs));
  if (turn.serverMs !== null) parts.push(words.serverTook(turn.serverMs));
  return parts.join(" · ");
}

function interruptionText(turn, words) {
  if (!turn.isInterrupted) return "";
  return turn.heard?.samples ? words.interruptedAfter((1000 * turn.heard.samples) / RATE_HZ) : words.interrupted;
}

function element(name, className = "") {
  return Object.assign(document.createElement(name), { className });
}

function show(place, text) {
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
}
