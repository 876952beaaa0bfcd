// Charts, each with its table. A line is told apart by its dashes as well as by its colour.

import { h, newId } from "./dom.js";
import { clock, DASH } from "./format.js";
import { plainTable } from "./table.js";

const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3], [12, 4]];
const TABLE_ROWS = 120;
const POWERS = Array.from({ length: 40 }, (_, n) => 2 ** (n + 8)); // ticks of bytes

const drawn = new Set();

export function redrawAll() {
  for (const chart of drawn) chart.draw();
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// lines: [{label, points: [[t, v], …], dash?, tone?}]
export class Chart {
  constructor(title, { unit = (v) => String(v), height = 130, note = "", floor = null, binary = false } = {}) {
    this.title = title;
    this.unit = unit;
    this.height = height;
    this.floor = floor;
    this.binary = binary;
    this.lines = [];
    this.plot = null;
    this.canvas = h("div", { class: "plot", role: "img", "aria-label": title });
    this.legend = h("p", { class: "legend" });
    this.none = h("p", { class: "none" }, "reading what was recorded …");
    this.table = h("div", { id: newId("t"), hidden: true });
    this.toggle = h("button", { type: "button", "aria-expanded": "false",
      "aria-controls": this.table.id, class: "small", "aria-label": `${title}: show as a table`,
      hidden: true },
    "Table");
    this.toggle.addEventListener("click", () => this.flip());
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("h2", {}, title), this.toggle),
      note ? h("p", { class: "note" }, note) : null,
      this.lead = h("p", { class: "lead" }), this.legend, this.canvas, this.none, this.table);
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.element);
    drawn.add(this);
  }

  panel(...before) {
    return h("section", { class: "panel", "aria-label": this.title }, ...before, this.element);
  }

  close() {
    this.watcher.disconnect();
    this.plot?.destroy();
    drawn.delete(this);
  }

  flip() {
    const open = this.table.hidden;
    this.table.hidden = !open;
    this.toggle.setAttribute("aria-expanded", String(open));
    if (open) this.fillTable();
  }

  set(lines, since = null, until = null) {
    this.none.textContent = "nothing recorded in this time";
    this.lines = lines.filter((line) => line.points && line.points.length > 0);
    this.range = since === null ? null : [since, until];
    this.draw();
    if (!this.table.hidden) this.fillTable();
  }

  // undefined: another line has a point there and this one not; null: nothing was known, a gap.
  joined() {
    const at = new Map();
    const put = (t, place, v) => {
      if (!at.has(t)) at.set(t, new Array(this.lines.length).fill(undefined));
      at.get(t)[place] = v;
    };
    this.lines.forEach((line, place) => {
      for (const [t, v] of line.points) put(t, place, v);
      for (const t of gaps(line.points)) put(t, place, null);
    });
    const times = [...at.keys()].sort((a, b) => a - b);
    return [times, ...this.lines.map((_, place) => times.map((t) => at.get(t)[place]))];
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    const any = this.lines.length > 0;
    this.none.hidden = any;
    this.canvas.hidden = !any;
    this.toggle.hidden = !any;
    this.legend.replaceChildren();
    if (!any) {
      this.table.hidden = true;
      this.toggle.setAttribute("aria-expanded", "false");
      return;
    }
    this.data = this.joined();
    this.describe();
    const width = Math.max(120, Math.floor(this.element.clientWidth) || 300);
    this.plot = new window.uPlot(this.options(width), this.data, this.canvas);
  }

  options(width) {
    const text = colour("--muted"), grid = colour("--line");
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 },
      font: "11px system-ui, sans-serif" };
    const floor = this.floor;
    return {
      width, height: this.height, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      padding: [8, 22, 0, 0],
      scales: {
        x: { time: true, range: this.range ? () => this.range : undefined },
        y: { range: (_, low, high) => spread(low, high, floor) },
      },
      axes: [
        { ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map((t) => clock(t, false).split(" ").pop()) },
        { ...axis, size: 56, space: 22, ...(this.binary ? { incrs: POWERS } : {}), values: (_, ticks) => ticks.map((v) => this.unit(v)) },
      ],
      series: [{}, ...this.lines.map((line, place) => ({
        label: line.label, stroke: colour(tone(line, place)), width: 1.75,
        dash: line.dash || DASHES[place % DASHES.length],
        points: { show: line.points.length < 8 && !line.dash, size: 5 },
      }))],
    };
  }

  describe() {
    const told = [];
    this.lines.forEach((line, place) => {
      const values = line.points.map(([, v]) => v).filter((v) => v !== null);
      if (values.length === 0) return;
      const last = this.unit(values.at(-1));
      const key = h("span", { class: "key", "aria-hidden": "true" });
      key.style.borderTop = `2px ${place % DASHES.length ? "dashed" : "solid"} var(${tone(line, place)})`;
      this.legend.append(h("span", { class: "entry" }, key, `${line.label} `, h("b", {}, last)));
      told.push(`${line.label}: now ${last}, between ${this.unit(Math.min(...values))} and ${this.unit(Math.max(...values))}`);
    });
    this.canvas.setAttribute("aria-label", `${this.title}. ${told.join("; ")}`);
  }

  resize() {
    if (!this.plot) return;
    const width = Math.max(120, Math.floor(this.element.clientWidth));
    if (Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.height });
  }

  fillTable() {
    const [times, ...values] = this.data || [[]];
    const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
    const rows = [];
    for (let i = times.length - 1; i >= 0; i -= step) {
      rows.push([clock(times[i]), ...values.map((line) => line[i] === null || line[i] === undefined ? DASH : this.unit(line[i]))]);
    }
    this.table.replaceChildren(plainTable(`${this.title}, as a table`,
      ["time", ...this.lines.map((line) => line.label)], rows));
  }
}

// Where a line breaks off: between points that lie three usual steps apart.
function gaps(points) {
  if (points.length < 4) return [];
  const steps = points.slice(1).map(([t], at) => t - points[at][0]);
  const usual = [...steps].sort((a, b) => a - b)[steps.length >> 1];
  return steps.flatMap((step, at) => step > 3 * usual ? [points[at][0] + usual] : []);
}

const tone = (line, place) => line.tone ? `--${line.tone}` : `--line-${(place % 5) + 1}`;

function spread(low, high, floor) {
  if (low === null || low === undefined) return [0, 1];
  if (floor !== null) low = Math.min(floor, low);
  if (low === high) return [low - (low ? Math.abs(low) * 0.1 : 0), high + (high ? Math.abs(high) * 0.1 : 1)];
  return [low, high + (high - low) * 0.08];
}

// The series of a history answer that end in this metric, as a line each.
export function linesOf(series, wanted) {
  const lines = [];
  for (const [metric, label, extra] of wanted) {
    for (const [name, points] of Object.entries(series)) {
      if (name.slice(name.lastIndexOf("/") + 1) === metric) lines.push({ label, points, ...extra });
    }
  }
  return lines;
}

export const RANGES = [["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["7 d", 604800]];

export function rangePicker(label, chosen, call) {
  const select = h("select", { "aria-label": label, onchange: () => call(Number(select.value)) },
    RANGES.map(([name, seconds]) => h("option", { value: String(seconds), selected: seconds === chosen }, name)));
  return h("label", { class: "pick" }, "Time ", select);
}
