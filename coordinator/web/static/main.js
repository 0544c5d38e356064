// Chooses the view that the address names, and passes every change on to it.

import "./actions.js";
import { view as device } from "./device_view.js";
import { view as devices } from "./devices_view.js";
import { number, setText, showPill } from "./format.js";
import { view as layers } from "./layers_view.js";
import { view as log } from "./log_view.js";
import { showUntil, view as run } from "./run_view.js";
import { begin, onChange, state } from "./state.js";

const $ = (id) => document.getElementById(id);
const views = { run, devices, device, layers, log };
let current = "";

function route() {
  const [, first = "", second = ""] = location.hash.split("/");
  let name = first || "run", argument = "";
  if (first === "devices" && second) {
    name = "device";
    try { argument = decodeURIComponent(second); } catch { argument = second; }
  }
  if (!Object.hasOwn(views, name)) name = "run";
  const isNew = current !== "";
  current = name;
  for (const key of Object.keys(views)) $(`view-${key}`).hidden = key !== name;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.dataset.view === name || (name === "device" && link.dataset.view === "devices");
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  views[name].enter(argument);
  if (isNew) $("main").focus({ preventScroll: true });
  showTitle();
}

function showTitle() {
  const { run: facts } = state;
  const place = { devices: "devices", layers: "layers", log: "log", device: $("heading-device").textContent }[current];
  const title = [place, facts.name, facts.rounds ? `round ${facts.round} of ${facts.rounds}` : ""].filter(Boolean).join(" · ");
  if (document.title !== title) document.title = title || "sparsyedge";
}

function showFrame() {
  const { run: facts } = state;
  setText($("run-name"), facts.name ?? "sparsyedge");
  setText($("run-fleet"), facts.fleet ? `fleet ${facts.fleet}` : "");
  const asked = facts.requests ?? [];
  const word = asked.includes("stop") && facts.actions ? "stopping" : asked.includes("pause") && facts.state === "running" ? "pausing" : facts.state;
  if (["running", "paused", "silent"].includes(facts.state)) showPill($("run-state"), word ?? "");
  else showPill($("run-state"), facts.state ?? "");
  setText($("nav-devices"), state.devices.size ? number(state.devices.size) : "");
  const trouble = facts.trouble ?? "";
  $("trouble").hidden = !trouble;
  setText($("trouble"), trouble ? `Not everything can be read right now: ${trouble}` : "");
  showTitle();
}

onChange((change) => {
  if (change.me) {
    setText($("software"), state.me.software ?? "");
    setText($("wrong-tokens"), state.me.wrong_tokens ? ` · ${number(state.me.wrong_tokens)} wrong tokens so far` : "");
  }
  if (!change.me) showFrame();
  for (const [name, view] of Object.entries(views)) {
    if (name === current) view.change?.(change);
    else view.hidden?.(change);
  }
});
addEventListener("hashchange", route);
setInterval(() => { if (state.isFresh) { showUntil(); views[current].tick?.(); } }, 1000);
route();
begin().catch(() => { $("connection").textContent = "Connection lost: trying again by itself."; $("connection").hidden = false; });
