// Sparsity by layer: how many zeros each has now, and how it came there.

import { element, percent } from "./format.js";
import { state } from "./state.js";

const $ = (id) => document.getElementById(id);
const WIDTH = 160, HEIGHT = 22;
let shownRound = 0;

// All lines share one scale, from the fewest zeros that any layer ever had to the most.
function draw(canvas, values, low, high) {
  const scale = devicePixelRatio || 1;
  canvas.width = WIDTH * scale;
  canvas.height = HEIGHT * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  context.lineWidth = 1.5;
  context.beginPath();
  values.forEach((value, index) => {
    if (value === null) return;
    const x = 2 + (index * (WIDTH - 4)) / Math.max(1, values.length - 1);
    context.lineTo(x, HEIGHT - 3 - ((value - low) / (high - low || 1)) * (HEIGHT - 6));
  });
  context.stroke();
}

async function load() {
  const round = state.layers.round;
  if (!round || round === shownRound) return;
  shownRound = round;
  const answer = await fetch("/api/layers", { cache: "no-store" });
  if (!answer.ok) return;
  const { rounds, layers } = await answer.json();
  const all = layers.flatMap((layer) => layer.sparsity).filter((value) => value !== null);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  $("layer-rows").replaceChildren(
    ...layers.map(({ name, sparsity }) => {
      const last = sparsity.at(-1);
      const bar = element("meter", { min: 0, max: 1, value: last ?? 0 });
      bar.setAttribute("aria-label", `zeros of ${name}`);
      const line = element("canvas", { role: "img", "aria-label": `from ${percent(sparsity[0], 2)} to ${percent(last, 2)}` });
      draw(line, sparsity, low, high);
      return element("tr", {}, element("td", { text: name }), element("td", { text: percent(last, 2) }),
        element("td", { class: "bar" }, bar), element("td", {}, line));
    }),
  );
  $("layers-note").textContent = `Share of weights that are zero after round ${rounds.at(-1)}; lines run from round ${rounds[0]} to it, and from ${percent(low, 0)} to ${percent(high, 0)}.`;
}

export const view = {
  enter() {
    if (!state.layers.round) $("layers-note").textContent = "The first closed round brings the figures.";
    load();
  },
  change(change) {
    if (change.layers) load();
  },
};

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { shownRound = 0; });
