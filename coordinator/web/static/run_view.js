// The run at a glance.

import { Chart, drawAgain } from "./charts.js";
import { bytes, clock, duration, element, joules, NOTHING, number, percent, score, setText, showFacts } from "./format.js";
import { serverNow, state } from "./state.js";

const $ = (id) => document.getElementById(id);
const charts = {};
const HEAD = ["round", "quality", "loss", "zeros", "up", "down", "joules", "seconds", "updates", "refused"];
const DEVICES_HEAD = ["on devices", "worst tenth", "personalised", "worst tenth"];
const ON_DEVICES = ["given", "given_worst", "own", "own_worst"];

const onDevices = (round, key) => round.on_devices?.[key] ?? null;

// Devices may begin to evaluate in any round, and the first evaluation of all may lag: then the chart is made anew.
function makeQuality(rounds) {
  const isRegression = rounds.some((round) => round.rmse !== null || round.on_devices?.kind === "rmse");
  const hasDevices = rounds.some((round) => round.on_devices);
  const key = `${isRegression} ${hasDevices}`;
  if (charts.quality && charts.qualityKey === key) return;
  charts.quality?.remove();
  Object.assign(charts, { qualityKey: key, isRegression, hasDevices });
  const name = isRegression ? "RMSE" : "Accuracy";
  const series = hasDevices
    ? [{ name: "test set", key: 1 }, { name: "on devices", key: 2 }, { name: "worst tenth", key: 2, isQuiet: true }, { name: "personalised", key: 3 }, { key: 3, isQuiet: true }]
    : [{ name: "test set", key: 1 }];
  charts.quality = new Chart($("charts"), hasDevices ? name : `${name} on the test set`, series, (value) => score(value, isRegression),
    { fromZero: false, axis: (value) => (isRegression ? number(value, 3) : percent(value, 0)), empty: "no round was evaluated yet" });
  $("charts").prepend(charts.quality.figure);
}

function makeCharts() {
  const parent = $("charts");
  charts.bytes = new Chart(parent, "Bytes a round", [{ name: "up", key: 1 }, { name: "down", key: 2 }], bytes, { mayLog: true });
  charts.joules = new Chart(parent, "Joules a round, all devices", [{ name: "joules", key: 1 }], joules, { empty: "no device measures its energy" });
  charts.seconds = new Chart(parent, "Seconds a round", [{ name: "seconds", key: 1 }], duration);
}

function showCharts() {
  const rounds = [...state.rounds.values()].sort((a, b) => a.round - b.round);
  if (!rounds.length && !charts.bytes) {
    if (!$("charts").childElementCount) $("charts").append(element("p", { class: "muted", text: "Charts appear when the first round is closed." }));
    return;
  }
  if ($("charts").firstElementChild?.tagName === "P") $("charts").firstElementChild.remove();
  makeQuality(rounds);
  if (!charts.bytes) makeCharts();
  const numbers = rounds.map((round) => round.round);
  const column = (key) => rounds.map((round) => round[key]);
  const devices = charts.hasDevices ? ON_DEVICES.map((key) => rounds.map((round) => onDevices(round, key))) : [];
  charts.quality.show([numbers, column(charts.isRegression ? "rmse" : "accuracy"), ...devices]);
  charts.bytes.show([numbers, column("up"), column("down")]);
  charts.joules.show([numbers, column("joules")]);
  charts.seconds.show([numbers, column("seconds")]);
}

function sum(rounds, key) {
  const values = rounds.map((round) => round[key]).filter((value) => value !== null);
  return values.length ? values.reduce((a, b) => a + b, 0) : null;
}

function facts() {
  const { run } = state;
  const rounds = [...state.rounds.values()];
  const last = rounds.at(-1);
  const evaluated = rounds.findLast((round) => round.accuracy !== null || round.rmse !== null);
  const best = Math.max(...rounds.map((round) => round.accuracy ?? -1));
  const devices = [...state.devices.values()];
  const online = devices.filter((device) => ["online", "training", "left out"].includes(device.state)).length;
  const up = sum(rounds, "up"), dense = sum(rounds, "dense"), energy = sum(rounds, "joules");
  const kinds = new Set(rounds.filter((round) => round.joules !== null).map((round) => round.kind));
  return [
    ["round", run.rounds ? `${run.round} of ${run.rounds}` : NOTHING, run.rounds ? `${run.closed} closed${run.closed ? ` in ${duration(sum(rounds, "seconds") ?? 0)}` : ""}` : ""],
    evaluated?.rmse !== null && evaluated?.rmse !== undefined
      ? ["RMSE", number(evaluated.rmse, 4), `after round ${evaluated.round}`]
      : ["accuracy", percent(evaluated?.accuracy), evaluated ? `after round ${evaluated.round}${best > evaluated.accuracy ? `, best ${percent(best)}` : ""}` : ""],
    ...factsOnDevices(rounds),
    ["sparsity", percent(last?.sparsity, 2), last ? "zeros of the prunable weights" : ""],
    run.actions?.length ? ["devices online", `${online} of ${devices.length}`, count(devices)] : ["devices", number(devices.length), count(devices)],
    ["bytes up", bytes(up), up && dense ? `${number(dense / up, 1)}× less than dense` : ""],
    ["bytes down", bytes(sum(rounds, "down")), ""],
    ["energy", joules(energy), [...kinds].join(", ")],
  ];
}

function factsOnDevices(rounds) {
  return [["on devices", "given"], ["personalised", "own"]].flatMap(([name, key]) => {
    const found = rounds.findLast((round) => onDevices(round, key) !== null)?.on_devices;
    if (!found) return [];
    const isRegression = found.kind === "rmse";
    return [[name, score(found[key], isRegression), `worst tenth ${score(found[`${key}_worst`], isRegression)}, ${number(found.devices)} devices`]];
  });
}

function count(devices) {
  const training = devices.filter((device) => device.state === "training").length;
  const refused = devices.filter((device) => device.refused).length;
  return [training ? `${training} training` : "", refused ? `${refused} refused something` : ""].filter(Boolean).join(", ");
}

function showTable() {
  if (!$("round-details").open) return;
  const rounds = [...state.rounds.values()].sort((a, b) => b.round - a.round);
  const hasDevices = rounds.some((round) => round.on_devices);
  const head = hasDevices ? [...HEAD, ...DEVICES_HEAD] : HEAD;
  if ($("round-head").childElementCount !== head.length) {
    $("round-head").replaceChildren(...head.map((name) => element("th", { scope: "col", text: name })));
  }
  $("round-rows").replaceChildren(
    ...rounds.map((round) =>
      element("tr", {}, ...[
        number(round.round), round.quality, number(round.loss, 4), percent(round.sparsity, 2), bytes(round.up), bytes(round.down),
        joules(round.joules), duration(round.seconds), number(round.updates), number(round.refused),
        ...(hasDevices ? ON_DEVICES.map((key) => score(onDevices(round, key), round.on_devices?.kind === "rmse")) : []),
      ].map((text) => element("td", { text })))),
  );
}

export function showUntil() {
  const { until, state: stage } = state.run;
  const left = until ? until - serverNow() : 0;
  setText($("until"), until && stage === "running"
    ? left > 0 ? `${duration(left)} left until then.` : `The time limit of ${clock(until)} has passed; it decides now.`
    : "");
}

function showBar(bar, text, value, max, words) {
  bar.max = max || 1;
  bar.value = value;
  setText(text, words);
}

export const view = {
  show() {
    const { run } = state;
    if (!state.isFresh) return;
    setText($("sentence"), run.sentence ?? "");
    showUntil();
    showBar($("bar-rounds"), $("text-rounds"), run.closed ?? 0, run.rounds, run.rounds ? `${run.closed} of ${run.rounds}` : NOTHING);
    showBar($("bar-updates"), $("text-updates"), run.accepted ?? 0, run.cohort, run.cohort ? `${run.accepted} of ${run.cohort}` : "no round is open");
    showFacts($("facts"), facts());
    showCharts();
    showTable();
    $("evaluations").replaceChildren(...(run.evaluations ?? []).toReversed().map((text) => element("li", { text })));
    const files = run.files ?? [];
    if ($("downloads").childElementCount !== files.length) {
      $("downloads").replaceChildren(...files.map((name) => element("a", { href: `/files/${name}`, download: name, text: `↓ ${name}` })));
    }
  },
  enter() {
    this.show();
    drawAgain();
  },
  change(change) {
    if (change.run || change.rounds || change.devices) this.show();
  },
};

$("round-details").addEventListener("toggle", showTable);
