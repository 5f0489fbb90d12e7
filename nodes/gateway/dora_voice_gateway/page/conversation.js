// What the page knows of the conversation: its turns, and whether it listens, thinks, speaks or holds. No DOM in it.

import { Turn } from "./turn.js";

const MOST_TURNS = 200;
const VOICE_BEFORE_START_MS = 1000; // speech is recognised as such a little after it began

export class Conversation {
  turns = []; // oldest first; those of earlier sessions stay to be read
  connection = "connecting"; // then "queued", "ready", "gone", "refused" or "ended"
  position = 0; // in the queue
  isMicrophoneOn = false;
  #session = 0;
  #bySegment = new Map();
  #typed = []; // turns whose segment the server has not told yet
  #gone = new Set(); // dropped segments
  #floor = 0; // every older segment is dead
  #dropped = null; // the turn that was dropped last
  #lastVoiceAt = -Infinity;
  #playback = { state: "silent", segmentId: null };

  /** A message of the server. */
  receive(message, now) {
    const receivers = {
      ready: () => this.#begin(),
      queued: () => this.#wait(message.position),
      speech_started: () => this.#start(message, now),
      hypothesis: () => this.#guess(message),
      transcript: () => this.#turnOf(message.segment_id)?.transcribed(message),
      reply: () => this.#alive(message.segment_id)?.replied(message),
      timing: () => this.#time(message),
      commit: () => this.#commit(message.segment_id),
      flush: () => this.#flush(message.segment_id),
      drop: () => this.#drop(message.segment_id),
    };
    receivers[message.type]?.();
  }

  typed(text, isSpoken, now) {
    const turn = new Turn(this.#session, { isTyped: true, isSpoken, text, now });
    this.#add(turn);
    this.#typed.push(turn);
  }

  /** The microphone hears what is clearly a voice. */
  voice(now) {
    this.#lastVoiceAt = now;
  }

  /** A report of the playback. */
  played(report) {
    this.#bySegment.get(report.segmentId)?.wasHeard(report);
  }

  /** The playback's status changed. */
  playing(status, now) {
    this.#playback = status;
    const turn = this.#bySegment.get(status.segmentId);
    if (status.state === "playing" && turn?.askedAt) turn.answeredAfterMs ??= now - turn.askedAt;
  }

  /** The user wants silence. Says which segment that ends; null if its number is not known yet. */
  stop() {
    const turn = this.#bySegment.get(this.#playback.segmentId) ?? this.#open;
    turn?.interrupt();
    return this.#segmentOf(turn);
  }

  disconnected(connection) {
    this.connection = connection;
    this.turns = this.turns.filter((turn) => turn.isCommitted || turn.session !== this.#session);
    for (const turn of this.turns) turn.interrupt();
  }

  get state() {
    if (this.connection !== "ready") return this.connection;
    if (this.#playback.state !== "silent") return this.#playback.state === "paused" ? "paused" : "speaking";
    if (this.#open) return this.#open.isCommitted ? "thinking" : "hearing";
    return this.isMicrophoneOn ? "listening" : "idle";
  }

  get #open() {
    return this.turns.findLast((turn) => !turn.isOver);
  }

  #segmentOf(turn) {
    for (const [segmentId, known] of this.#bySegment) if (known === turn) return segmentId;
    return null;
  }

  /** A new session knows nothing of the one before, and counts its segments anew. */
  #begin() {
    this.connection = "ready";
    this.#session += 1;
    this.#bySegment.clear();
    this.#typed = [];
    this.#gone.clear();
    this.#floor = 0;
    this.#dropped = null;
  }

  #wait(position) {
    this.connection = "queued";
    this.position = position;
  }

  #start({ segment_id: segmentId, continues }, now) {
    this.turns = this.turns.filter((turn) => turn.rejected === null);
    const isRest = continues !== undefined && this.#dropped?.segmentId === continues;
    const turn = new Turn(this.#session, { text: isRest ? this.#dropped.text : "", now });
    this.#bySegment.set(segmentId, turn);
    this.#add(turn);
  }

  #guess({ segment_id: segmentId, text }) {
    const turn = this.#bySegment.get(segmentId);
    if (turn && !turn.isFinal) turn.text = text;
  }

  #time({ segment_id: segmentId, first_audio_ms: ms }) {
    const turn = this.#bySegment.get(segmentId);
    if (turn) turn.serverMs = ms;
  }

  #commit(segmentId) {
    const turn = this.#alive(segmentId);
    if (!turn) return;
    turn.isCommitted = true;
    const wasClear = this.#lastVoiceAt >= turn.startedAt - VOICE_BEFORE_START_MS;
    if (!turn.isTyped && wasClear) turn.askedAt = this.#lastVoiceAt;
  }

  #flush(segmentId) {
    this.#floor = Math.max(this.#floor, segmentId);
    for (const [older, turn] of this.#bySegment) if (older < segmentId) turn.interrupt();
    for (const older of this.#gone) if (older < segmentId) this.#gone.delete(older);
  }

  #drop(segmentId) {
    const turn = this.#bySegment.get(segmentId);
    this.#gone.add(segmentId);
    this.#bySegment.delete(segmentId);
    this.turns = this.turns.filter((known) => known !== turn);
    this.#dropped = { segmentId, text: turn?.text };
  }

  #alive(segmentId) {
    return segmentId < this.#floor ? null : this.#turnOf(segmentId);
  }

  /** A segment that no speech began is the answer to what was typed. */
  #turnOf(segmentId) {
    const known = this.#bySegment.get(segmentId);
    if (known || segmentId < this.#floor || this.#gone.has(segmentId)) return known;
    const turn = this.#typed.shift();
    if (turn) this.#bySegment.set(segmentId, turn);
    return turn;
  }

  #add(turn) {
    this.turns.push(turn);
    if (this.turns.length <= MOST_TURNS) return;
    const [oldest] = this.turns.splice(0, 1);
    this.#bySegment.delete(this.#segmentOf(oldest));
  }
}
