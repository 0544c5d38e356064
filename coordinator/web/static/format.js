// Numbers and times as people read them. Whatever devices say goes into the page as text, never as markup.

export const NOTHING = "–";

export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function percent(value, digits = 1) {
  return value === null || value === undefined ? NOTHING : `${number(100 * value, digits)} %`;
}

// An accuracy, or the RMSE of a regression.
export function score(value, isRegression) {
  return isRegression ? number(value, 4) : percent(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${number(value / size, value < 10 * size ? 2 : 1)} ${unit}`;
  }
  return `${number(value)} B`;
}

export function joules(value) {
  if (value === null || value === undefined) return NOTHING;
  for (const [unit, size] of [["MJ", 1e6], ["kJ", 1e3]]) {
    if (value >= size) return `${number(value / size, 2)} ${unit}`;
  }
  return `${number(value, value && value < 100 ? 1 : 0)} J`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const s = Math.max(0, seconds);
  if (s && s < 10) return `${number(s, 1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 99 * 60) return `${Math.round(s / 60)} min`;
  if (s < 48 * 3600) return `${number(s / 3600, 1)} h`;
  return `${Math.round(s / 86400)} d`;
}

export function ago(at, now) {
  if (!at) return "never";
  const s = Math.max(0, now - at);
  if (s < 3) return "now";
  return `${s < 120 ? `${Math.floor(s)} s` : duration(s)} ago`;
}

// A device's software without our own name before its version.
export function version(software) {
  return software.replace(/^sparsyedge /, "") || NOTHING;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// pairs of [name, value, small print]
export function showFacts(list, pairs) {
  list.replaceChildren(
    ...pairs.map(([name, value, small]) => {
      const shown = element("dd", { text: value });
      if (small) shown.append(element("small", { text: small.replaceAll(" %", "\u00a0%") }));
      return element("div", {}, element("dt", { text: name }), shown);
    }),
  );
}

const TONES = {
  running: "good", finished: "good", online: "good", training: "busy", paused: "warn", stopped: "warn", unfit: "warn",
  "left out": "warn", silent: "bad", failed: "bad", revoked: "bad", lost: "bad",
};

export function showPill(node, state) {
  setText(node, state);
  node.className = `pill ${TONES[state] ?? ""}`;
}
