// Lives of replicas as strips: rectangles of states over time. States are told apart by hatching
// and by their name as well as by colour.

import { h, newId, path, s } from "./dom.js";
import { clock, lasts } from "./format.js";
import { plainTable } from "./table.js";

export const STATES = ["starting", "loading", "warming", "ready", "suspect", "quarantined",
  "draining", "stopped", "dead"];
const ENDS = new Set(["left", "leaves"]);
const MARKS = [["incident opened", "!"], ["silent", "z"], ["disturbed on purpose", "x"], ["breaker", "b"]];

// {replica: [{state, from, to, reason}]} and marks, from events sorted by time.
export function segments(events, since, until, present, complete) {
  const lives = new Map(), marks = new Map();
  const life = (id) => {
    if (!lives.has(id)) lives.set(id, []);
    return lives.get(id);
  };
  let known = complete ? since : until;
  for (const event of events) {
    known = Math.min(known, Math.max(since, event.at));
    if (!event.replica) continue;
    const own = life(event.replica);
    const open = own.at(-1);
    if (STATES.includes(event.what)) {
      if (open && open.to === null) open.to = event.at;
      own.push({ state: event.what, from: event.at, to: null, reason: event.reason });
    } else if (ENDS.has(event.what)) {
      if (open && open.to === null && event.what === "left") open.to = event.at;
    } else {
      const kind = MARKS.find(([what]) => event.what.startsWith(what));
      if (kind && event.at >= since) {
        if (!marks.has(event.replica)) marks.set(event.replica, []);
        marks.get(event.replica).push({ at: event.at, sign: kind[1], what: event.what, reason: event.reason });
      }
    }
  }
  for (const row of present) {
    // One that told nothing in all that time was all that time what it is now.
    if (!lives.has(row.id) && STATES.includes(row.state)) {
      lives.set(row.id, [{ state: row.state, from: known, to: null, reason: row.reason }]);
    }
  }
  for (const [id, own] of lives) {
    for (const one of own) {
      one.to = Math.min(until, one.to ?? until);
      one.from = Math.max(since, one.from);
    }
    lives.set(id, own.filter((one) => one.to > one.from));
  }
  return { lives, marks, known };
}

function hatches() {
  const pattern = (id, cls, draw) => s("pattern", { id, width: "6", height: "6",
    patternUnits: "userSpaceOnUse", class: cls }, s("rect", { width: "6", height: "6", class: "ground" }), draw);
  return s("defs", {},
    pattern("p-loading", "f-loading", s("path", { d: "M0 6L6 0", class: "ink" })),
    pattern("p-suspect", "f-suspect", s("path", { d: "M0 0L6 6M0 6L6 0", class: "ink" })),
    pattern("p-quarantined", "f-quarantined", s("path", { d: "M0 0L6 6", class: "ink" })),
    pattern("p-draining", "f-draining", s("path", { d: "M0 3H6", class: "ink" })),
    pattern("p-stopped", "f-stopped", s("circle", { cx: "3", cy: "3", r: "1", class: "ink" })));
}

export function legend() {
  return h("p", { class: "legend states" }, ["loading", "warming", "ready", "suspect", "quarantined",
    "draining", "stopped", "dead"].map((name) => h("span", { class: "entry" },
    s("svg", { width: "26", height: "12", "aria-hidden": "true", class: "swatch" },
      s("rect", { x: "0.5", y: "0.5", width: "25", height: "11", class: `seg g-${name}` })), name)),
  MARKS.map(([what, sign]) => h("span", { class: "entry" }, h("b", { class: "bad" }, sign), what)));
}

// rows: [{id, model}]; one strip each, with its name at the left where `named`.
export class Strips {
  constructor(title, { named = true, rowHeight = 16 } = {}) {
    this.title = title;
    this.named = named;
    this.rowHeight = rowHeight;
    this.holder = h("div", { class: "strips" });
    this.table = h("div", { id: newId("t"), hidden: true });
    this.toggle = h("button", { type: "button", class: "small", "aria-expanded": "false",
      "aria-controls": this.table.id, "aria-label": `${title}: show as a table` }, "Table");
    this.toggle.addEventListener("click", () => {
      this.table.hidden = !this.table.hidden;
      this.toggle.setAttribute("aria-expanded", String(!this.table.hidden));
      this.fillTable();
    });
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("h2", {}, title), this.toggle), legend(), this.holder, this.table);
    this.watcher = new ResizeObserver(() => this.redraw());
    this.watcher.observe(this.holder);
  }

  close() {
    this.watcher.disconnect();
  }

  set(rows, found, since, until) {
    this.given = { rows, found, since, until };
    this.width = 0;
    this.redraw();
    if (!this.table.hidden) this.fillTable();
  }

  redraw() {
    const width = Math.floor(this.holder.clientWidth);
    if (!this.given || !width || width === this.width) return;
    this.width = width;
    this.holder.replaceChildren(this.picture(width));
  }

  picture(width) {
    const { rows, found, since, until } = this.given;
    const longest = rows.reduce((most, row) => Math.max(most, row.id.length), 6);
    const left = this.named ? Math.min(longest * 7 + 8, Math.max(80, Math.floor(width * 0.24))) : 0;
    const pace = (width - left - 2) / (until - since);
    const x = (t) => left + (t - since) * pace;
    const high = this.rowHeight;
    const tall = rows.length * high + 22;
    const figure = s("svg", { width: String(width), height: String(tall), class: "lives",
      role: "group", "aria-label": `${this.title}: ${rows.length} replicas, ${lasts(until - since)}; the table says the same` }, hatches());
    for (const t of ticks(since, until - 40 / pace, (width - left) / 90)) {
      figure.append(s("line", { x1: x(t), x2: x(t), y1: 0, y2: tall - 20, class: "tick" }),
        s("text", { x: x(t) + 3, y: tall - 6, class: "axis" }, clock(t, false).split(" ").pop()));
    }
    let model = null;
    rows.forEach((row, place) => {
      const y = place * high + 2;
      if (this.named) {
        if (row.model !== model) {
          model = row.model;
          if (place) figure.append(s("line", { x1: 0, x2: width, y1: y - 2, y2: y - 2, class: "rule" }));
        }
        figure.append(s("a", { href: path.replica(row.id) },
          s("text", { x: 0, y: y + high - 6, class: "who" }, clipped(row.id, left)), s("title", {}, row.id)));
      }
      if (found.known > since) {
        figure.append(s("rect", { x: left, y, width: Math.max(0, x(found.known) - left), height: high - 4, class: "seg g-none" },
          s("title", {}, "not recorded")));
      }
      for (const one of found.lives.get(row.id) || []) {
        const wide = Math.max(1.5, (one.to - one.from) * pace);
        figure.append(s("rect", { x: x(one.from), y, width: wide, height: high - 4, class: `seg g-${one.state}` },
          s("title", {}, `${row.id}: ${one.state} ${clock(one.from)} to ${clock(one.to)}, ${lasts(one.to - one.from)}. ${one.reason || ""}`)));
      }
      for (const mark of found.marks.get(row.id) || []) {
        figure.append(s("text", { x: x(mark.at), y: y + high - 6, class: "sign" }, mark.sign,
          s("title", {}, `${clock(mark.at)} ${mark.what}: ${mark.reason}`)));
      }
    });
    return figure;
  }

  fillTable() {
    if (!this.given || this.table.hidden) return;
    const { rows, found } = this.given;
    const lines = [];
    for (const row of rows) {
      for (const one of found.lives.get(row.id) || []) {
        lines.push([row.id, one.state, clock(one.from), lasts(one.to - one.from), one.reason || "–"]);
      }
    }
    this.table.replaceChildren(plainTable(`${this.title}, as a table`,
      ["replica", "state", "from", "for", "why"], lines.slice(-1000), false));
  }
}

const clipped = (text, left) => {
  const most = Math.floor(left / 6.6);
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
};

function ticks(since, until, most) {
  const steps = [60, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = steps.find((one) => (until - since) / one <= Math.max(2, most)) || 86400;
  const first = Math.ceil(since / step) * step;
  const found = [];
  for (let t = first; t < until; t += step) found.push(t);
  return found;
}
