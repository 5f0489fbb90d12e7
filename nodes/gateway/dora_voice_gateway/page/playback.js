// What is played of the replies of one conversation, on a clock of samples, as dora-voice-speaker does it.
//
// A reply that is paused or cut fades out: a copy of what would have come next is played, fading, and counts as not
// played. When it goes on, what was played last is repeated, fading in. So every sample of a reply is played at its
// full level once, whatever the pauses, and the reports count these alone.

import { FADE_SAMPLES, fadedIn, fadedOut, joined } from "./fade.js";
import { Reply } from "./reply.js";

export const RATE_HZ = 24000;
export const REPORT_SAMPLES = RATE_HZ / 10;
export const LONGEST_PAUSE = 4 * RATE_HZ;
const LONGEST_STARVING = 10 * RATE_HZ;
const LONGEST_QUEUE = 300 * RATE_HZ; // the server sends 1.5 s ahead; this only bounds the memory
const MOST_REPLIES = 256;
const MOST_REMEMBERED = 1024;

export class Playback {
  #replies = new Map(); // by segment, in the order in which they are played
  #over = new Set(); // segments that have ended, been cut or given up
  #committed = new Set();
  #pauses = new Map(); // held segments, also those whose audio has not come yet, and for how many samples
  #floor = 0; // every older segment is dead
  #fade = new Float32Array(0); // is played before anything else
  #sounding = null; // the segment that is heard at its full level now, or when the fade is over
  #reports = [];

  /** Queues samples of a segment. What comes after its end, its `drop` or a `flush` is ignored. */
  add(segmentId, samples, { fin = false, speculative = false, textEnd = 0 } = {}) {
    if (segmentId < this.#floor || this.#over.has(segmentId)) return;
    const reply = this.#replyOf(segmentId);
    if (reply.isComplete) return;
    reply.isHeld = speculative && !this.#committed.has(segmentId);
    const fits = this.#queued + samples.length <= LONGEST_QUEUE;
    reply.isComplete = fin || !fits; // no hole in the middle: it ends with what waits
    if (fits) reply.add(samples, textEnd);
    if (this.#replies.size > MOST_REPLIES) this.#end(segmentId, true);
  }

  /** A verb of the conversation; one that doesn't concern the playback changes nothing. */
  control(verb, segmentId) {
    if (verb === "commit") this.#commit(segmentId);
    else if (verb === "pause") this.#pause(segmentId);
    else if (verb === "resume") this.#resume(segmentId);
    else if (verb === "flush") this.#flush(segmentId);
    else if (verb === "drop") this.#drop(segmentId);
  }

  /** Fills `sound` with what comes next; silence where there is nothing to play. */
  play(sound) {
    sound.fill(0);
    this.#letPausePass(sound.length);
    let position = this.#playFade(sound);
    for (const [segmentId, reply] of this.#replies) {
      if (reply.isHeld || this.#pauses.has(segmentId)) break;
      const count = reply.play(sound.subarray(position));
      if (count) this.#sounding = segmentId;
      position += count;
      if (reply.played - reply.reported >= REPORT_SAMPLES) this.#report(segmentId, reply);
      if (!this.#isOver(reply, sound.length - position)) break;
      this.#end(segmentId, !reply.isComplete);
    }
    if (position < sound.length) this.#sounding = null;
  }

  /** What was heard of which segment since the last call; `fin` when it ended or, with `cut`, was cut. */
  takeReports() {
    return this.#reports.splice(0);
  }

  /** What a listener would say: "playing", "paused" or "silent", and of which segment. */
  get status() {
    const [first] = this.#replies;
    if (!first || first[1].isHeld) return { state: "silent", segmentId: null };
    const [segmentId, reply] = first;
    if (this.#pauses.has(segmentId)) return { state: "paused", segmentId };
    return reply.played ? { state: "playing", segmentId } : { state: "silent", segmentId: null };
  }

  #replyOf(segmentId) {
    if (!this.#replies.has(segmentId)) this.#replies.set(segmentId, new Reply());
    return this.#replies.get(segmentId);
  }

  get #queued() {
    let queued = 0;
    for (const reply of this.#replies.values()) queued += reply.queued;
    return queued;
  }

  #commit(segmentId) {
    remember(this.#committed, segmentId);
    if (this.#replies.has(segmentId)) this.#replies.get(segmentId).isHeld = false;
  }

  #pause(segmentId) {
    const reply = this.#replies.get(segmentId);
    if (reply?.played && !this.#pauses.has(segmentId)) {
      this.#fadeOut(segmentId);
      this.#report(segmentId, reply);
    }
    if (segmentId >= this.#floor && !this.#over.has(segmentId)) this.#pauses.set(segmentId, 0);
    if (this.#pauses.size > MOST_REPLIES) this.#pauses.delete(this.#pauses.keys().next().value);
  }

  #resume(segmentId) {
    const recent = this.#replies.get(segmentId)?.recent;
    if (!this.#pauses.delete(segmentId) || !recent?.length) return;
    this.#fade = joined(this.#fade, fadedIn(recent));
    this.#sounding = segmentId;
  }

  #flush(segmentId) {
    this.#floor = Math.max(this.#floor, segmentId);
    for (const older of [...this.#replies.keys(), ...this.#pauses.keys()]) if (older < segmentId) this.#drop(older);
  }

  #drop(segmentId) {
    this.#fadeOut(segmentId);
    this.#end(segmentId, true);
  }

  #letPausePass(samples) {
    const { state, segmentId } = this.status;
    if (state !== "paused") return;
    this.#pauses.set(segmentId, this.#pauses.get(segmentId) + samples);
    if (this.#pauses.get(segmentId) > LONGEST_PAUSE) this.#resume(segmentId);
  }

  #playFade(sound) {
    const part = this.#fade.subarray(0, sound.length);
    sound.set(part);
    this.#fade = this.#fade.subarray(part.length);
    return part.length;
  }

  #fadeOut(segmentId) {
    if (this.#sounding !== segmentId) return;
    const next = joined(this.#fade, this.#replies.get(segmentId).upcoming(FADE_SAMPLES));
    this.#fade = fadedOut(next.subarray(0, FADE_SAMPLES));
    this.#sounding = null;
  }

  /** Whether it was played to its end, or has held up the next one for too long because that never came. */
  #isOver(reply, lacking) {
    if (reply.queued || reply.isComplete) return !reply.queued;
    reply.starved = this.#replies.size > 1 ? reply.starved + lacking : 0;
    return reply.starved > LONGEST_STARVING;
  }

  #report(segmentId, reply, rest = { fin: false, cut: false }) {
    reply.reported = reply.played;
    this.#reports.push({ segmentId, samples: reply.played, textEnd: reply.textEnd, ...rest });
  }

  #end(segmentId, cut) {
    const reply = this.#replies.get(segmentId);
    this.#replies.delete(segmentId);
    this.#pauses.delete(segmentId);
    remember(this.#over, segmentId);
    if (reply) this.#report(segmentId, reply, { fin: true, cut });
  }
}

function remember(segments, segmentId) {
  segments.add(segmentId);
  if (segments.size > MOST_REMEMBERED) segments.delete(segments.keys().next().value);
}
