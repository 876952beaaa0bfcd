// All replicas over time: waves of loading, outages, and who came back when.

import { rangePicker } from "./charts.js";
import { h, put } from "./dom.js";
import { segments, STATES, Strips } from "./life.js";
import { live } from "./live.js";
import { get } from "./server.js";

const EVENTS = 5000;
const ROWS = 200;

export function stream(root) {
  const page = new StreamPage(root);
  page.load();
  const timer = setInterval(() => { if (!document.hidden) page.load(); }, 10000);
  return { title: "Task stream", filter: page.filter, close() { clearInterval(timer); page.strips.close(); } };
}

class StreamPage {
  constructor(root) {
    this.range = 3600;
    this.strips = new Strips("States of replicas over time");
    this.filter = h("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false",
      placeholder: "replica or model", oninput: () => this.draw() });
    this.changed = h("input", { type: "checkbox", id: "changed", onchange: () => this.draw() });
    this.note = h("p", { class: "faint", role: "status" });
    root.append(h("h1", {}, "Task stream"),
      h("p", { class: "lead" }, "One line for each replica; a rectangle for each state it was in. Rectangles of loading that begin together are a wave: they share the disk."),
      h("div", { class: "tools" }, h("label", { for: "filter" }, "Filter "), this.filter,
        h("label", { class: "check" }, this.changed, " only those that changed"),
        rangePicker("Time shown", this.range, (s) => { this.range = s; this.load(); })),
      this.note, h("section", { class: "panel", "aria-label": "Lives" }, this.strips.element));
  }

  async load() {
    try {
      const found = await get(`/events?limit=${EVENTS}`);
      this.events = found.events;
      this.complete = found.events.length < EVENTS;
    } catch (error) {
      put(this.note, error.message);
      return;
    }
    this.draw();
  }

  draw() {
    if (!this.events) return;
    const until = Date.now() / 1000, since = until - this.range;
    const present = live.view?.replicas || [];
    const models = new Map(present.map((r) => [r.id, r.model]));
    const moved = new Set();
    for (const event of this.events) {
      if (event.replica && !models.has(event.replica)) models.set(event.replica, event.model);
      if (event.replica && event.at >= since && STATES.includes(event.what)) moved.add(event.replica);
    }
    const found = segments(this.events, since, until, present, this.complete);
    const wanted = this.filter.value.trim().toLowerCase();
    let rows = [...models].map(([id, model]) => ({ id, model }))
      .filter((r) => (found.lives.get(r.id) || []).length > 0)
      .filter((r) => !wanted || `${r.id} ${r.model}`.toLowerCase().includes(wanted))
      .filter((r) => !this.changed.checked || moved.has(r.id));
    rows.sort((a, b) => a.model < b.model ? -1 : a.model > b.model ? 1 : order(a.id, b.id));
    const all = rows.length;
    if (all > ROWS) rows = [...rows.filter((r) => moved.has(r.id)), ...rows.filter((r) => !moved.has(r.id))].slice(0, ROWS);
    put(this.note, `${all} replicas${all > ROWS ? `, ${ROWS} shown, those that changed first: use the filter` : ""}. ${moved.size} changed state in this time.`);
    this.strips.set(rows, found, since, until);
  }
}

const order = (a, b) => a.localeCompare(b, "en", { numeric: true });
