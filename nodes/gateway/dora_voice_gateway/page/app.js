// Wires the page up: what comes from the server, the microphone, the playback and the user goes to the conversation,
// and what it then is, to the view.

import { audioPiece } from "./audio-piece.js";
import { Conversation } from "./conversation.js";
import { Microphone } from "./microphone.js";
import { Connection, UNAUTHORIZED, useToken } from "./socket.js";
import { Speaker, levelOf } from "./speaker.js";
import { View } from "./view.js";
import { VoiceActivity } from "./voice-activity.js";
import { otherThan, wordsFor } from "./words.js";

const SILENT_DB = -100;
const ALL = Number.MAX_SAFE_INTEGER;
const $ = (id) => document.getElementById(id);
const MICROPHONE_PROBLEMS = {
  SecurityError: "insecure",
  NotAllowedError: "permission",
  NotFoundError: "noMicrophone",
  NotReadableError: "microphoneBusy",
};

const conversation = new Conversation();
const view = new View(wordsFor(localStorage.getItem("language") ?? navigator.language));
const connection = new Connection({ onState: connectionChanged, onMessage: received, onAudio: heardFromServer });
const microphone = new Microphone(heardFromUser, microphoneLost);
const voiceActivity = new VoiceActivity();
const problems = new Map(); // by what has the problem: "microphone", "sound", "connection", "network", "server"
const actions = {
  gone: { name: "tryNow", run: () => connection.open() },
  ended: { name: "connect", run: () => connection.open() },
  server: { name: "dismiss", run: () => solved("server") },
  slow: { name: "dismiss", run: () => solved("network") },
};
let speaker = null;
let microphoneDb = SILENT_DB;
let hasChanged = false;
let isDrawing = false;
let isStarting = false;

await openSpeaker();
listenToUser();
connection.open(microphone.rateHz);

async function openSpeaker() {
  try {
    speaker = await Speaker.open(toldByPlayback);
    // Tests hear by it what the page gives out: the AudioNode that is connected to the destination.
    window.doraVoice = { output: speaker.output };
  } catch (error) {
    problem("sound", error.name === "SecurityError" ? "insecure" : "noSound");
    $("speak").checked = false;
    $("speak").disabled = true;
  }
}

function listenToUser() {
  $("talk").addEventListener("click", toggleMicrophone);
  $("stop").addEventListener("click", stop);
  $("composer").addEventListener("submit", sendText);
  $("token-form").addEventListener("submit", sendToken);
  $("language").addEventListener("click", changeLanguage);
  document.addEventListener("keydown", keyPressed);
  for (const gesture of ["pointerdown", "keydown"]) document.addEventListener(gesture, () => speaker?.wake());
  window.addEventListener("pagehide", () => connection.close());
  window.addEventListener("pageshow", ({ persisted }) => persisted && connection.open());
  window.addEventListener("online", () => conversation.connection === "gone" && connection.open());
  window.addEventListener("hashchange", () => location.reload()); // with another token
}

function keyPressed(event) {
  if (event.isComposing) return; // the keys choose a character
  if (event.key === "Escape") stop();
  if (event.key !== " " || event.repeat || event.target.closest("input, button")) return;
  event.preventDefault();
  toggleMicrophone();
}

/** Whatever it is now, the session is over. */
function connectionChanged(state, retryMs) {
  conversation.disconnected(state);
  speaker?.control("flush", ALL);
  if (state !== "connecting") problem("connection", state, retryMs);
  draw();
}

function received(message) {
  conversation.receive(message, performance.now());
  if (message.type === "ready") begun();
  else if (message.type === "ended") connectionChanged("ended");
  else if (message.type === "queued") solved("connection");
  else if (message.type === "error") reported(message);
  else if (message.type === "reply" && message.fin && !message.error) solved("server"); // all nodes are there again
  else speaker?.control(message.type, message.segment_id);
  draw();
}

function begun() {
  speaker?.control("reset");
  solved("connection");
  solved("server");
}

/** A token that was refused is told as the connection's problem. */
function reported({ code, error }) {
  if (code !== UNAUTHORIZED) problem("server", "server", `${error} (${code})`);
}

function heardFromServer(buffer) {
  speaker?.play(audioPiece(buffer));
}

function toldByPlayback(event) {
  if (event.type === "played") {
    conversation.played(event);
    const { segmentId, samples, fin } = event;
    connection.send({ type: "played", segment_id: segmentId, samples, fin });
  } else {
    conversation.playing(event, performance.now() + speaker.latencyMs);
  }
  draw();
}

function heardFromUser(samples) {
  microphoneDb = microphone.isOn ? levelOf(samples) : SILENT_DB;
  if (voiceActivity.isVoice(microphoneDb)) conversation.voice(performance.now());
  if (!connection.sendAudio(samples)) problem("network", "slow");
  drawLevels();
}

async function toggleMicrophone() {
  if (isStarting) return;
  isStarting = true;
  if (microphone.isOn) microphone.stop();
  else await startMicrophone();
  isStarting = false;
  conversation.isMicrophoneOn = microphone.isOn;
  draw();
}

async function startMicrophone() {
  try {
    await microphone.start();
    solved("microphone");
    const hasOtherRate = connection.rateHz !== microphone.rateHz;
    if (hasOtherRate || conversation.connection === "ended") connection.open(microphone.rateHz);
  } catch (error) {
    const kind = MICROPHONE_PROBLEMS[error.name] ?? "microphoneFailed";
    problem(kind === "insecure" ? "sound" : "microphone", kind); // both fail for the same reason, told once
  }
}

function microphoneLost() {
  microphone.stop();
  conversation.isMicrophoneOn = false;
  problem("microphone", "microphoneLost");
}

/** The sound ends here and now, not when the server has heard of it. */
function stop() {
  if ($("stop").disabled) return;
  const segmentId = conversation.stop();
  if (segmentId !== null) speaker?.control("drop", segmentId);
  connection.send({ type: "stop" });
  draw();
}

function sendText(event) {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || conversation.connection !== "ready") return;
  const speak = $("speak").checked;
  connection.send({ type: "text", text, speak });
  conversation.typed(text, speak, performance.now());
  $("text").value = "";
  draw();
}

function sendToken(event) {
  event.preventDefault();
  useToken($("token").value);
  $("token").value = "";
  solved("connection");
  connection.open();
}

function changeLanguage() {
  view.speak(otherThan(view.words));
  localStorage.setItem("language", view.words.language);
  draw();
}

function problem(where, kind, argument) {
  problems.set(where, { kind, argument });
  draw();
}

function solved(where) {
  problems.delete(where);
  draw();
}

function draw() {
  hasChanged = true;
  drawLevels();
}

/** Once per frame, however much has happened. */
function drawLevels() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    if (hasChanged) view.render(conversation, [...problems.values()], actions);
    hasChanged = false;
    const isSpeaking = conversation.state === "speaking";
    view.levels(microphone.isOn ? microphoneDb : SILENT_DB, isSpeaking ? speaker.level : SILENT_DB);
    if (isSpeaking) drawLevels();
  });
}
