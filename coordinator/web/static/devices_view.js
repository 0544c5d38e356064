// The table of devices: sorts and filters a thousand rows without a pause, and changes only cells that changed.

import { ago, bytes, element, joules, NOTHING, number, score, setText, showPill, version } from "./format.js";
import { serverNow, state } from "./state.js";

const $ = (id) => document.getElementById(id);
const HOT_C = 80;

export function doing(device) {
  if (!device.phase) return device.state === "training" ? "asked to train" : "";
  if (device.phase !== "train" || !device.steps) return device.phase;
  return `train, step ${number(device.step)} of ${number(device.steps)}`;
}

const progress = (device) => (device.phase ? (device.steps ? device.step / device.steps : 0) + 1 : 0);
const names = new Intl.Collator("en", { numeric: true });

// key, heading, what to sort by, text, first direction
const COLUMNS = [
  ["id", "device", (device) => device.id, null, 1],
  ["state", "state", (device) => device.state, null, 1],
  ["doing", "doing", progress, doing, -1],
  ["seen", "seen", (device) => device.seen, null, -1],
  ["temperature", "°C", (device) => device.temperature ?? -Infinity, (device) => number(device.temperature, 1), -1],
  ["battery", "battery", (device) => device.battery ?? Infinity, (device) => (device.battery === null ? NOTHING : `${number(device.battery)} %`), 1],
  ["joules", "joules", (device) => device.joules ?? -1, (device) => joules(device.joules), -1],
  ["up", "up", (device) => device.up, (device) => bytes(device.up), -1],
  ["down", "down", (device) => device.down, (device) => bytes(device.down), -1],
  ["given", "global", (device) => device.given ?? -1, (device) => score(device.given, device.is_regression), 1],
  ["own", "own", (device) => device.own ?? -1, (device) => score(device.own, device.is_regression), 1],
  ["updates", "updates", (device) => device.updates, (device) => number(device.updates), -1],
  ["version", "version", (device) => device.version, (device) => version(device.version), 1],
  ["refused", "refused, why", (device) => device.refused + device.why.length, notes, -1],
];
const LEFT = new Set(["id", "state", "doing", "version", "refused"]);

function notes(device) {
  const count = device.refused ? `${number(device.refused)}× ` : "";
  return `${count}${device.why.join("; ")}` || NOTHING;
}

const rows = new Map();
let sortedBy = COLUMNS[0];
let direction = 1;
let isDirty = true;

function makeRow(device) {
  const cells = {};
  // Roles by name: rows that are not laid out as a table would lose them.
  const tr = element("tr", { role: "row" });
  for (const [key] of COLUMNS) {
    const cell = element(key === "id" ? "th" : "td", { class: `c-${key}${LEFT.has(key) ? " left" : ""}`, role: key === "id" ? "rowheader" : "cell" });
    if (key === "id") {
      cell.scope = "row";
      cell.append(element("a", { href: `#/devices/${encodeURIComponent(device.id)}`, text: device.id, title: device.id }));
    } else if (key === "state") {
      cell.append(element("span", { class: "pill" }));
    }
    cells[key] = cell;
    tr.append(cell);
  }
  return { tr, cells, device: null, isShown: true };
}

function fill(row, device) {
  row.device = device;
  showPill(row.cells.state.firstChild, device.state);
  for (const [key, , , text] of COLUMNS) {
    if (text) setText(row.cells[key], text(device));
  }
  row.cells.temperature.classList.toggle("hot", device.temperature >= HOT_C);
  row.cells.refused.title = device.why.join("\n");
  row.cells.version.title = device.version;
  row.cells.given.title = device.scored ? `in round ${device.scored}, on its own test samples` : "";
  row.searched = `${device.id}\n${device.version}\n${device.why.join("\n")}`.toLowerCase();
  setText(row.cells.seen, ago(device.seen, serverNow()));
}

function compare(a, b) {
  const [x, y] = [sortedBy[2](a.device), sortedBy[2](b.device)];
  const order = typeof x === "string" ? names.compare(x, y) : x - y || 0;
  return direction * order || names.compare(a.device.id, b.device.id);
}

function arrange() {
  const wanted = $("filter").value.trim().toLowerCase(), wantedState = $("filter-state").value;
  const shown = [];
  for (const row of rows.values()) {
    if ((!wanted || row.searched.includes(wanted)) && (!wantedState || row.device.state === wantedState)) shown.push(row);
  }
  shown.sort(compare);
  const body = $("device-rows");
  const isSame = body.childElementCount === shown.length && shown.every((row, index) => body.children[index] === row.tr);
  if (!isSame) {
    const focused = document.activeElement;
    body.replaceChildren(...shown.map((row) => row.tr));
    if (focused && focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
  }
  setText($("filter-count"), shown.length === rows.size ? `${number(rows.size)} devices` : `${number(shown.length)} of ${number(rows.size)} devices`);
  $("no-devices").hidden = rows.size > 0;
  const hasScores = [...rows.values()].some(({ device }) => device.given !== null || device.own !== null);
  $("device-head").closest("table").classList.toggle("has-scores", hasScores);
}

function showStates() {
  const counts = new Map();
  for (const device of state.devices.values()) counts.set(device.state, (counts.get(device.state) ?? 0) + 1);
  const select = $("filter-state"), chosen = select.value;
  const texts = [["", "all"], ...[...counts].sort().map(([name, count]) => [name, `${name} (${count})`])];
  if (texts.map((one) => one[1]).join() === [...select.options].map((option) => option.text).join()) return;
  select.replaceChildren(...texts.map(([value, text]) => element("option", { value, text })));
  select.value = counts.has(chosen) ? chosen : "";
}

function update(devices) {
  for (const device of devices) {
    if (!rows.has(device.id)) rows.set(device.id, makeRow(device));
    fill(rows.get(device.id), device);
  }
  showStates();
  arrange();
}

function sortBy(column) {
  direction = sortedBy === column ? -direction : column[4];
  sortedBy = column;
  showSorting();
  arrange();
}

function showSorting() {
  for (const [index, heading] of [...$("device-head").children].entries()) {
    if (COLUMNS[index] === sortedBy) heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    else heading.removeAttribute("aria-sort");
  }
}

for (const column of COLUMNS) {
  const button = element("button", { type: "button", text: column[1] });
  button.addEventListener("click", () => sortBy(column));
  $("device-head").append(element("th", { scope: "col", role: "columnheader", class: `c-${column[0]}${LEFT.has(column[0]) ? " left" : ""}` }, button));
}
showSorting();
$("filter").addEventListener("input", arrange);
$("filter-state").addEventListener("change", arrange);
$("filters").addEventListener("submit", (event) => event.preventDefault());

export const view = {
  enter() {
    if (isDirty) {
      for (const id of [...rows.keys()]) if (!state.devices.has(id)) rows.delete(id);
      update(state.devices.values());
    }
    isDirty = false;
  },
  change(change) {
    if (change.isWhole) isDirty = true;
    if (isDirty) this.enter();
    else if (change.devices) update(change.devices);
  },
  hidden(change) {
    if (change.devices || change.isWhole) isDirty = true;
  },
  tick() {
    for (const row of rows.values()) setText(row.cells.seen, ago(row.device.seen, serverNow()));
  },
};
