// The coordinator's log as it grows.

import { element } from "./format.js";
import { KEPT_LINES, state } from "./state.js";

const $ = (id) => document.getElementById(id);

function toneOf(line) {
  const level = line.split(" ", 2)[1];
  return level === "ERROR" || level === "CRITICAL" ? "error" : level === "WARNING" ? "warning" : "";
}

function isWanted(line) {
  const wanted = $("log-filter").value.trim().toLowerCase();
  return (!wanted || line.toLowerCase().includes(wanted)) && (!$("log-warnings").checked || toneOf(line));
}

const made = (lines) => lines.filter(isWanted).map((line) => element("div", { class: toneOf(line), text: line }));

function follow() {
  if ($("log-follow").checked) $("log").scrollTop = $("log").scrollHeight;
}

export const view = {
  enter() {
    const lines = made(state.log);
    const text = state.log.length ? "No line matches." : "There is no line yet. Demos and simulations log warnings alone, and runs of earlier versions have no log.";
    $("log").replaceChildren(...(lines.length ? lines : [element("div", { class: "muted", text })]));
    follow();
  },
  change(change) {
    if (change.isWhole || (change.log && $("log").firstChild?.className === "muted")) this.enter();
    else if (change.log) {
      $("log").append(...made(change.log));
      while ($("log").childElementCount > KEPT_LINES) $("log").firstChild.remove();
      follow();
    }
  },
};

$("log-filters").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["log-filter", "log-warnings", "log-follow"]) $(id).addEventListener("input", () => view.enter());
$("log").addEventListener("scroll", () => {
  const log = $("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  if (!isAtEnd && log.matches(":hover, :focus")) $("log-follow").checked = false;
});
