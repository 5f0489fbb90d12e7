// One exchange: what the user said or typed, and the reply to it.

import { partsOf } from "./heard.js";

export class Turn {
  text = "";
  isFinal = false; // the transcript is no longer a guess
  isCommitted = false; // it has really been said: until then it may still be dropped
  rejected = null; // why there is no speech in it
  error = null;

  reply = "";
  isWritten = false; // the whole text of the reply is there
  replyError = null;
  isInterrupted = false;
  isOver = false; // heard to its end, or nothing more is to be expected
  heard = null; // the last report of the playback

  answeredAfterMs = null;
  serverMs = null;

  constructor(session, { isTyped = false, isSpoken = true, text = "", now } = {}) {
    this.session = session;
    this.isTyped = isTyped;
    this.isSpoken = isSpoken; // whether the reply is to be heard
    this.text = text;
    this.isCommitted = this.isFinal = isTyped;
    this.startedAt = now;
    this.askedAt = isTyped ? now : null;
  }

  get isGuess() {
    return !this.isOver && !(this.isFinal && this.isCommitted);
  }

  transcribed({ text, rejected, error }) {
    this.text = text || (rejected || error ? "" : this.text);
    this.isFinal = true;
    this.rejected = rejected ?? null;
    this.error = error ?? null;
    if (rejected !== undefined || error) this.isOver = true;
  }

  replied({ text_delta: delta, fin, error }) {
    if (this.isInterrupted) return;
    this.reply += delta ?? "";
    this.replyError ??= error ?? null;
    this.isWritten ||= Boolean(fin);
    if (this.isWritten && (!this.isSpoken || error)) this.isOver = true;
  }

  wasHeard(report) {
    this.heard = report;
    if (report.cut) this.interrupt();
    if (report.fin) this.isOver = true;
  }

  interrupt() {
    if (!this.isOver) this.isInterrupted = true;
    this.isOver = true;
  }

  /** The reply in two: what counts as said, and what was cut off before it was heard. */
  get parts() {
    const heard = this.isInterrupted ? (this.heard?.textEnd ?? null) : null;
    return heard === null ? [this.reply, ""] : partsOf(this.reply, heard);
  }
}
