// Lines over rounds, drawn by uPlot in the page's own colours.

import { element, number } from "./format.js";

const HEIGHT = 180;
const FAR = 30;
const charts = new Set();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The first round brings artifacts, which would press every later one flat.
function spreadsFar(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return Math.min(...known) > 0 && Math.max(...known) > FAR * Math.min(...known);
}

export class Chart {
  // series: [{name, key: 1 to 3, isQuiet}]; text formats a value for the caption, axis for the axis
  // A quiet series is thin and dashed, and only those with a name stand in the caption.
  constructor(parent, title, series, text, { axis = text, fromZero = true, mayLog = false, empty = "no round is closed yet" } = {}) {
    this.series = series;
    this.text = text;
    this.axis = axis;
    this.fromZero = fromZero;
    this.mayLog = mayLog;
    this.isLog = false;
    this.empty = empty;
    this.latest = element("span", { class: "latest muted" });
    this.plot = element("div", { class: "plot", "aria-hidden": "true" });
    const names = series.length > 1
      ? series.filter((one) => one.name).map((one) => element("span", { class: one.isQuiet ? "muted" : `key-${one.key}`, text: ` ${one.name}` }))
      : [];
    this.caption = element("figcaption", {}, element("span", {}, element("b", { text: title }), ...names), this.latest);
    this.figure = element("figure", {}, this.caption, this.plot);
    parent.append(this.figure);
    this.data = null;
    charts.add(this);
  }

  // columns: rounds, then one list for each series; null where there is no value
  show(columns) {
    const [rounds, ...values] = columns;
    const hasValues = values.some((list) => list.some((value) => value !== null && value !== undefined));
    this.data = hasValues ? columns : null;
    this.latest.textContent = hasValues
      ? this.told((list) => list.findLast((value) => value !== null && value !== undefined), values)
      : "";
    const isLog = this.mayLog && spreadsFar(values.flat());
    if (isLog !== this.isLog) this.drop();
    this.isLog = isLog;
    if (!hasValues) {
      this.drop();
      this.plot.replaceChildren(element("p", { class: "empty", text: rounds.length ? this.empty : "no round is closed yet" }));
    } else if (this.drawn) {
      this.drawn.setData(columns);
    } else {
      this.draw();
    }
  }

  // One value of every series that is not quiet, as text.
  told(choose, values) {
    return values.filter((_, index) => !this.series[index].isQuiet).map((list) => this.text(choose(list))).join(" · ");
  }

  drop() {
    this.drawn?.destroy();
    this.drawn = null;
    this.plot.replaceChildren();
  }

  draw() {
    this.drop();
    if (!this.data || !this.plot.clientWidth) return;
    const ink = colour("--muted"), grid = { stroke: colour("--grid"), width: 1 };
    const ticks = { show: false };
    const font = "12px system-ui, sans-serif";
    this.drawn = new uPlot(
      {
        width: this.plot.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: this.scale() },
        axes: [
          { stroke: ink, grid: { show: false }, ticks, font, size: 26, values: (_, at) => at.map((x) => (Number.isInteger(x) ? number(x) : "")) },
          { stroke: ink, grid, ticks, font, size: 66, values: (_, at) => at.map((y) => (y === null ? "" : this.axis(y))) },
        ],
        series: [
          {},
          ...this.series.map((one) => ({
            stroke: colour(["--accent", "--second", "--busy"][one.key - 1]),
            width: one.isQuiet ? 1 : 2,
            dash: one.isQuiet ? [4, 4] : undefined,
            spanGaps: true,
            points: { show: !one.isQuiet && this.data[0].length < 30, size: 5 },
          })),
        ],
        hooks: { setCursor: [(plot) => this.point(plot)] },
      },
      this.data,
      this.plot,
    );
  }

  scale() {
    if (this.isLog) return { distr: 3 };
    return this.fromZero ? { range: (_, low, high) => [0, high > 0 ? 1.12 * high : 1] } : {};
  }

  // What the pointer is at stands in the caption.
  point(plot) {
    const index = plot.cursor.idx;
    if (index === null || index === undefined) {
      this.show(this.data);
      return;
    }
    this.latest.textContent = `round ${this.data[0][index]}: ${this.told((list) => list[index], this.data.slice(1))}`;
  }

  remove() {
    this.drop();
    this.figure.remove();
    charts.delete(this);
  }
}

export function drawAgain() {
  for (const chart of charts) {
    if (chart.figure.offsetParent !== null && chart.data) {
      if (chart.drawn && chart.plot.clientWidth) chart.drawn.setSize({ width: chart.plot.clientWidth, height: HEIGHT });
      else chart.draw();
    }
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) {
    chart.drop();
    chart.draw();
  }
});
addEventListener("resize", drawAgain);
