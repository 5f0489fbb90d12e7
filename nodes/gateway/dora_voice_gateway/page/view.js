// The page as it is shown: everything that touches its elements.

import { TurnView } from "./turn-view.js";

const QUIETEST_DB = -60;
const NEAR_THE_END_PX = 80;
const $ = (id) => document.getElementById(id);

export class View {
  #turns = new Map();
  #announced = new Map(); // how much of a turn a screen reader was told: 1 the question, 2 the reply
  #problems = "";
  #followsEnd = true; // until the user scrolls back

  constructor(words) {
    const box = $("conversation");
    box.addEventListener("scroll", () => {
      this.#followsEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_THE_END_PX;
    });
    new ResizeObserver(() => this.#follow()).observe(box);
    this.speak(words);
  }

  /** In these words from now on. */
  speak(words) {
    this.words = words;
    this.#problems = "";
    document.documentElement.lang = words.language;
    document.title = words.title;
    for (const one of document.querySelectorAll("[data-words]")) one.textContent = words[one.dataset.words];
    for (const one of document.querySelectorAll("[data-label]")) one.ariaLabel = words[one.dataset.label];
    for (const one of document.querySelectorAll("[data-title]")) one.title = words[one.dataset.title];
    for (const one of document.querySelectorAll("[data-placeholder]")) one.placeholder = words[one.dataset.placeholder];
    $("language").textContent = words.otherLanguage;
    $("language").lang = words.otherLanguageCode;
  }

  /** `problems`: kind and, for some, an argument; `actions`: what a button in a problem does, by the problem's kind. */
  render(conversation, problems, actions) {
    this.#renderState(conversation);
    this.#renderProblems(problems, actions);
    this.#renderTurns(conversation.turns);
  }

  levels(microphoneDb, replyDb) {
    setLevel($("microphone-level"), microphoneDb);
    setLevel($("reply-level"), replyDb);
  }

  #renderState({ state, connection, position, isMicrophoneOn }) {
    const words = this.words.states[state];
    const shown = typeof words === "function" ? words(position) : words;
    if ($("state").textContent !== shown) $("state").textContent = shown;
    document.body.dataset.state = state;
    $("talk").classList.toggle("on", isMicrophoneOn);
    $("talk-words").textContent = isMicrophoneOn ? this.words.stopTalking : this.words.startTalking;
    $("stop").disabled = !["thinking", "speaking", "paused"].includes(state);
    $("send").disabled = connection !== "ready";
    $("token-form").hidden = state !== "refused";
  }

  /** Only when they changed: a screen reader says each of them. */
  #renderProblems(problems, actions) {
    const told = JSON.stringify(problems);
    if (told === this.#problems) return;
    this.#problems = told;
    $("problems").replaceChildren(...problems.map((problem) => this.#problem(problem, actions[problem.kind])));
  }

  #problem({ kind, argument }, action) {
    const words = this.words.problems[kind];
    const [what, advice] = typeof words === "function" ? words(argument) : words;
    const line = document.createElement("p");
    const text = document.createElement("span");
    const title = document.createElement("strong");
    title.textContent = what;
    text.append(title, ` ${advice || argument}`);
    line.append(text);
    if (action) line.append(button(this.words[action.name], action.run));
    return line;
  }

  #renderTurns(turns) {
    const list = $("turns");
    $("hint").hidden = turns.length > 0;
    for (const [turn, view] of this.#turns) if (!turns.includes(turn)) this.#forget(turn, view);
    turns.forEach((turn, index) => {
      if (!this.#turns.has(turn)) this.#show(turn, list, index > 0 && turns[index - 1].session !== turn.session);
      this.#turns.get(turn).render(this.words);
      this.#announce(turn);
    });
    this.#follow();
  }

  #follow() {
    if (this.#followsEnd) $("conversation").scrollTop = $("conversation").scrollHeight;
  }

  #show(turn, list, isFirstOfSession) {
    const view = new TurnView(turn, isFirstOfSession);
    this.#turns.set(turn, view);
    list.append(view.element);
  }

  #forget(turn, view) {
    view.element.remove();
    this.#turns.delete(turn);
    this.#announced.delete(turn);
  }

  /** Guesses and half sentences are not for ears: what was said is told once it is certain, replies once whole. */
  #announce(turn) {
    const known = this.#announced.get(turn) ?? 0;
    const now = turn.isCommitted && (turn.isWritten || turn.isOver) ? 2 : turn.isGuess ? 0 : 1;
    if (now <= known) return;
    this.#announced.set(turn, now);
    const question = known < 1 ? `${this.words.you}: ${turn.text} ` : "";
    const reply = now === 2 && turn.reply ? `${this.words.robot}: ${turn.parts[0]}` : "";
    $("announcement").textContent = question + reply;
  }
}

function button(text, run) {
  const one = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  one.addEventListener("click", run);
  return one;
}

function setLevel(meter, levelDb) {
  const percent = Math.round(100 * Math.min(1, Math.max(0, 1 - levelDb / QUIETEST_DB)));
  meter.style.setProperty("--level", percent / 100);
  meter.ariaValueNow = String(percent);
}
