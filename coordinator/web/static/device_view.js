// One device and its history over the rounds.

import { confirmed, report } from "./actions.js";
import { Chart, drawAgain } from "./charts.js";
import { doing } from "./devices_view.js";
import { ago, bytes, duration, element, joules, NOTHING, number, score, showFacts, showPill, version } from "./format.js";
import { post, serverNow, state } from "./state.js";

const $ = (id) => document.getElementById(id);
const PHASES = ["download", "evaluate", "train", "prune", "encode", "upload"];
let name = "";
let lastUpdates = -1;
let charts = null;

function makeCharts() {
  const parent = $("device-charts");
  charts = {
    scores: null,
    loss: new Chart(parent, "Training loss", [{ name: "loss", key: 1 }], (value) => number(value, 3), { fromZero: false }),
    seconds: new Chart(parent, "Seconds a round", [{ name: "all phases", key: 1 }, { name: "training", key: 2 }], duration),
    joules: new Chart(parent, "Joules a round", [{ name: "joules", key: 1 }], joules, { empty: "this device does not measure its energy" }),
    bytes: new Chart(parent, "Bytes a round", [{ name: "up", key: 1 }, { name: "down", key: 2 }], bytes, { mayLog: true }),
  };
}

const total = (entry, index) => {
  const values = Object.values(entry.phases).map((cost) => cost[index]).filter((value) => value !== null);
  return values.length ? values.reduce((a, b) => a + b, 0) : null;
};

// Only for a device that evaluates: most charts of a fleet without would stay empty.
function showScores(numbers, rounds, isRegression) {
  charts.scores ??= new Chart($("device-charts"), isRegression ? "RMSE on its own samples" : "Accuracy on its own samples",
    [{ name: "global model", key: 2 }, { name: "its own", key: 3 }], (value) => score(value, isRegression), { fromZero: false });
  $("device-charts").prepend(charts.scores.figure);
  charts.scores.show([numbers, rounds.map((entry) => entry.given), rounds.map((entry) => entry.own)]);
}

function showSaid({ evaluations, data, settings }) {
  $("device-settings").textContent = settings;
  $("device-notes").replaceChildren(
    ...data.map((one) => element("li", { text: `data, round ${number(one.round)}: ${one.note}` })),
    ...evaluations.map((one) => element("li", {
      text: `evaluation ${number(one.evaluation)}, after round ${number(one.round)}: ${one.is_regression ? "RMSE" : "accuracy"} ${score(one.given, one.is_regression)} on ${number(one.samples)} samples`,
    })),
  );
}

function showHistory({ rounds, refusals, ...said }) {
  if (!charts) makeCharts();
  showSaid(said);
  const isRegression = Boolean(state.devices.get(name)?.is_regression);
  const hasScores = rounds.some((entry) => entry.given !== null || entry.own !== null);
  const phases = PHASES.filter((phase) => phase !== "evaluate" || rounds.some((entry) => entry.phases.evaluate));
  const numbers = rounds.map((entry) => entry.round);
  if (hasScores) showScores(numbers, rounds, isRegression);
  charts.loss.show([numbers, rounds.map((entry) => entry.loss)]);
  charts.seconds.show([numbers, rounds.map((entry) => total(entry, 0)), rounds.map((entry) => entry.phases.train?.[0] ?? null)]);
  charts.joules.show([numbers, rounds.map((entry) => total(entry, 1))]);
  charts.bytes.show([numbers, rounds.map((entry) => entry.bytes_up), rounds.map((entry) => entry.bytes_down)]);
  const head = ["round", "answered after", "steps", "loss", ...(hasScores ? ["global", "own"] : []), ...phases, "joules", "up", "down", "peak memory", "counted"];
  $("history-head").replaceChildren(...head.map((text) => element("th", { scope: "col", text })));
  $("history-rows").replaceChildren(
    ...rounds.toReversed().map((entry) =>
      element("tr", {}, ...[
        number(entry.round), duration(entry.answered_s), number(entry.steps), number(entry.loss, 4),
        ...(hasScores ? [score(entry.given, isRegression), score(entry.own, isRegression)] : []),
        ...phases.map((phase) => (entry.phases[phase] ? duration(entry.phases[phase][0]) : NOTHING)),
        joules(total(entry, 1)), bytes(entry.bytes_up), bytes(entry.bytes_down), `${number(entry.peak_rss_mb)} MB`,
        entry.clipped === null ? "whole" : entry.clipped ? `clipped to ${number(entry.clipped, 2)}` : "left out",
      ].map((text) => element("td", { text })))),
  );
  const none = element("tr", {}, element("td", { colspan: "4", class: "muted", text: "nothing was refused from this device" }));
  $("refusal-rows").replaceChildren(
    ...(refusals.length
      ? refusals.map((refusal) => element("tr", {}, ...[number(refusal.round), refusal.kind, number(refusal.count), refusal.reason].map((text) => element("td", { text }))))
      : [none]),
  );
}

async function load() {
  const asked = name;
  const answer = await fetch(`/api/devices/${encodeURIComponent(asked)}`, { cache: "no-store" });
  if (asked !== name) return;
  if (answer.ok) showHistory(await answer.json());
  else $("device-why").replaceChildren(element("li", { text: (await answer.text()).trim() }));
}

function showActions(device) {
  const wanted = [];
  if (device?.why.some((reason) => reason.startsWith("left out"))) wanted.push(["release", "Release", `Let ${name} take part again?`]);
  if (state.me.can_revoke && device?.state !== "revoked") {
    wanted.push(["revoke", "Revoke…", `Shut ${name} out of the fleet for good? It must be enrolled anew to come back.`]);
  }
  const key = wanted.map((one) => one[0]).join();
  if ($("device-actions").dataset.key === `${name}/${key}`) return;
  $("device-actions").dataset.key = `${name}/${key}`;
  $("device-actions").replaceChildren(
    ...wanted.map(([action, text, question]) => {
      const button = element("button", { type: "button", text, class: action === "revoke" ? "danger" : "" });
      button.addEventListener("click", async () => {
        const device = name;
        if (await confirmed(question, text.replace("…", ""))) report(await post(`/api/actions/${action}`, { device }));
      });
      return button;
    }),
  );
}

function show() {
  const device = state.devices.get(name);
  $("heading-device").textContent = name;
  showActions(device);
  if (!device) {
    showPill($("device-state"), state.isFresh ? "unknown" : "");
    return;
  }
  showPill($("device-state"), device.state);
  $("device-why").replaceChildren(...device.why.map((text) => element("li", { text })));
  showFacts($("device-facts"), [
    ["doing", doing(device) || NOTHING, device.loss === null ? "" : `loss ${number(device.loss, 4)}`],
    ["seen", ago(device.seen, serverNow()), ""],
    ["temperature", device.temperature === null ? NOTHING : `${number(device.temperature, 1)} °C`, ""],
    ["battery", device.battery === null ? NOTHING : `${number(device.battery)} %`, ""],
    ["energy", joules(device.joules), device.joules === null ? "" : device.kind],
    ["bytes up", bytes(device.up), `down ${bytes(device.down)}`],
    ["updates", number(device.updates), device.last ? `last in round ${device.last}` : ""],
    ["samples", number(device.samples), ""],
    ...(device.given === null ? [] : [["global model", score(device.given, device.is_regression), `on its samples, round ${device.scored}`]]),
    ...(device.own === null ? [] : [["own model", score(device.own, device.is_regression), "after training"]]),
    ...(device.model_round === null ? [] : [["predicts with", `round ${number(device.model_round)}`, device.predict_ms === null ? "" : `${number(device.predict_ms, device.predict_ms < 10 ? 2 : 0)} ms a sample`]]),
    ["version", version(device.version), device.upgrade ? `upgrade: ${device.upgrade}${device.upgrade_reason ? `, ${device.upgrade_reason}` : ""}` : ""],
  ]);
  if (device.updates !== lastUpdates) {
    lastUpdates = device.updates;
    load();
  }
}

export const view = {
  enter(device) {
    name = device;
    lastUpdates = -1;
    if (charts) for (const chart of Object.values(charts)) chart?.remove();
    charts = null;
    $("history-rows").replaceChildren();
    $("refusal-rows").replaceChildren();
    $("device-why").replaceChildren();
    $("device-facts").replaceChildren();
    showSaid({ evaluations: [], data: [], settings: "" });
    show();
    if (!state.devices.get(name)) load();
    drawAgain();
  },
  change(change) {
    if (change.isWhole || change.me || change.devices?.some((device) => device.id === name)) show();
  },
  tick: show,
};
