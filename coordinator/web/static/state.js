// What the server says of the run, kept up to date by one stream of events; views hear of every change.

const SILENCE_MS = 25_000; // the server says something every 10 s
const AGAIN_MS = 2_000;

export const state = { run: {}, rounds: new Map(), devices: new Map(), layers: {}, log: [], me: {}, isFresh: false };
export const KEPT_LINES = 3000;

const listeners = new Set();
let source = null;
let watchdog = 0;
let behindS = 0; // this machine's clock against the server's
let lostAt = 0;

export function serverNow() {
  return Date.now() / 1000 - behindS;
}

export function onChange(listener) {
  listeners.add(listener);
}

function tell(change) {
  for (const listener of listeners) listener(change);
}

function take(change, isWhole) {
  behindS = Date.now() / 1000 - change.now;
  if (isWhole) {
    state.rounds.clear();
    state.devices.clear();
    state.log.length = 0;
  }
  if (change.run) state.run = change.run;
  for (const round of change.rounds ?? []) state.rounds.set(round.round, round);
  for (const device of change.devices ?? []) state.devices.set(device.id, device);
  if (change.layers) state.layers = change.layers;
  if (change.log) {
    state.log.push(...change.log);
    if (state.log.length > KEPT_LINES) state.log.splice(0, state.log.length - KEPT_LINES);
  }
  state.isFresh = true;
  tell({ ...change, isWhole });
}

function showLost() {
  lostAt ||= Date.now();
  const seconds = Math.round((Date.now() - lostAt) / 1000);
  const banner = document.getElementById("connection");
  banner.textContent =
    `Connection lost${seconds > 3 ? ` for ${seconds} s` : ""}: what you see may be old. Trying again by itself. ` +
    "If the coordinator has ended, `sparsyedge coordinator web RUN_DIR` shows its run again.";
  banner.hidden = false;
}

function heard() {
  lostAt = 0;
  document.getElementById("connection").hidden = true;
  clearTimeout(watchdog);
  watchdog = setTimeout(reconnect, SILENCE_MS);
}

async function reconnect() {
  source?.close();
  source = null;
  clearTimeout(watchdog);
  showLost();
  try {
    const answer = await fetch("/api/me", { cache: "no-store" });
    if (answer.status === 401) {
      location.assign("/login");
      return;
    }
    if (answer.ok) {
      state.me = await answer.json();
      tell({ me: true });
      connect();
      return;
    }
  } catch {
    // Nobody answers; the banner says so.
  }
  watchdog = setTimeout(reconnect, AGAIN_MS);
}

function connect() {
  source = new EventSource("/api/events");
  source.addEventListener("whole", (event) => { heard(); take(JSON.parse(event.data), true); });
  source.addEventListener("change", (event) => { heard(); take(JSON.parse(event.data), false); });
  source.addEventListener("beat", heard);
  source.addEventListener("error", () => {
    source?.close();
    source = null;
    showLost();
    clearTimeout(watchdog);
    watchdog = setTimeout(reconnect, AGAIN_MS);
  });
  clearTimeout(watchdog);
  watchdog = setTimeout(reconnect, SILENCE_MS);
}

export async function begin() {
  connect();
  const answer = await fetch("/api/me", { cache: "no-store" });
  if (answer.status === 401) {
    location.assign("/login");
    return;
  }
  state.me = await answer.json();
  tell({ me: true });
}

export async function post(path, body = {}) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-csrf-token": state.me.csrf ?? "" },
    body: JSON.stringify(body),
  });
  return { ok: answer.ok, sentence: (await answer.text()).trim() };
}
