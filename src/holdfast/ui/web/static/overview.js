// The whole fleet on one page: what is wrong comes first.

import { Chart } from "./charts.js";
import { h, panel, put } from "./dom.js";
import { count, DASH, of, short } from "./format.js";
import { live } from "./live.js";
import * as rows from "./rows.js";
import { get, history, historyOf } from "./server.js";
import { KeyedTable } from "./table.js";

const PAGE = 100; // rows of the replica table at first, and with each click
const WINDOW_S = 3600;
const BURNERS = 5;

export function overview(root) {
  const page = new Overview(root);
  const leave = live.subscribe((view) => page.update(view));
  page.chart();
  const timer = setInterval(() => page.chart(), 15000);
  return {
    title: "Overview",
    filter: page.filter,
    onlyFaults: () => page.only.click(),
    close() {
      leave();
      clearInterval(timer);
      page.charts.forEach((chart) => chart.close());
    },
  };
}

class Overview {
  constructor(root) {
    this.verdict = h("p", { class: "verdict" });
    this.tiles = new Tiles(["open incidents", "replicas ready", "requests/s", "tokens/s", "waiting",
      "dead letters", "worst burn", "gateways ready"]);
    this.tables = {
      incidents: table("Open incidents", rows.incidentColumns, (r) => r.id, "No open incident."),
      unmet: table("Demands that cannot be met", rows.unmetColumns, (r) => r.model + r.reason, "All demands are met."),
      warnings: table("Early warnings", rows.warningColumns, (r) => r.about + r.text, "Nothing fills up."),
      models: table("Models", rows.modelColumns, (r) => r.name, "No model.", true),
      replicas: table("Replicas", rows.replicaColumns, (r) => r.id, "No replica matches.", true),
      groups: table("Groups of hosts", rows.groupColumns, (r) => r.source + r.name, "No source tells of groups."),
      queues: table("Backlog", rows.queueColumns, (r) => r.source + r.name, "No queue."),
      disks: table("Filesystems", rows.diskColumns, (r) => r.source + r.id, "No shared filesystem."),
      hosts: table("Hosts", rows.hostColumns, (r) => r.source + r.id, "No source tells of hosts."),
      sources: table("Sources", rows.sourceColumns, (r) => `${r.source}/${r.part}`, "No source is configured."),
    };
    for (const name of ["models", "replicas", "groups", "queues", "disks", "hosts"]) {
      this.tables[name].rowClass = rows.rowClass;
    }
    this.tables.replicas.onsort = this.tables.models.onsort = () => this.again();
    this.most = PAGE;
    this.traffic = new Chart("Traffic, last hour", { unit: short, floor: 0, height: 120 });
    this.burn = new Chart("SLO burn, last hour", { unit: short, floor: 0, height: 120,
      note: "Error budget spent; above 1 it will not last." });
    this.charts = [this.traffic, this.burn];
    this.build(root);
  }

  build(root) {
    this.filter = h("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false",
      placeholder: "id, model, state, host, zone", oninput: () => this.narrowed() });
    this.only = h("input", { type: "checkbox", id: "only", onchange: () => this.narrowed() });
    this.matched = h("span", { class: "faint", role: "status" });
    this.more = h("button", { type: "button", onclick: () => { this.most += PAGE; this.again(); } });
    this.hosts = h("details", {}, h("summary", {}, h("h2", {}, "Hosts")), this.tables.hosts.element);
    this.hosts.addEventListener("toggle", () => this.again());
    this.past = h("details", { class: "past" }, h("summary", {}, "Closed lately"));
    this.past.addEventListener("toggle", () => this.pastIncidents());
    this.notes = h("ul", { class: "notes" });
    const { tables } = this;
    this.warned = panel("Early warnings", {}, tables.warnings.element);
    root.append(h("h1", { class: "unseen" }, "Overview"), this.verdict, this.tiles.element,
      panel("Incidents", {}, tables.incidents.element, this.past),
      panel("Demands that cannot be met", {}, tables.unmet.element),
      this.warned,
      h("div", { class: "pair" }, this.traffic.panel(), this.burn.panel()),
      panel("Models", {}, tables.models.element),
      panel("Replicas", {}, h("div", { class: "tools" },
        h("label", { for: "filter" }, "Filter "), this.filter,
        h("label", { class: "check" }, this.only, " only faults"), this.matched),
      tables.replicas.element, this.more),
      panel("Groups", {}, tables.groups.element),
      h("section", { class: "panel" }, this.hosts),
      panel("Backlog", {}, tables.queues.element),
      panel("Filesystems", {}, tables.disks.element),
      panel("Sources", {}, tables.sources.element, this.notes));
  }

  narrowed() {
    this.most = PAGE;
    this.again();
  }

  again() {
    if (live.view) this.update(live.view);
  }

  update(view) {
    this.judge(view);
    const { tables } = this;
    tables.incidents.update(view.incidents);
    tables.unmet.update(view.unmet);
    const warnings = view.warnings ?? [];
    tables.warnings.update(warnings);
    if (this.warned.hidden !== !warnings.length) this.warned.hidden = !warnings.length;
    const models = worstFirst(view.models, (m) => m.burn > 1).sort((a, b) => burning(b) - burning(a));
    tables.models.update(tables.models.order(models));
    this.replicas(view.replicas);
    tables.groups.update(view.groups);
    tables.queues.update(view.queues);
    tables.disks.update(view.disks);
    tables.sources.update(view.sources);
    if (this.hosts.open) tables.hosts.update(view.hosts);
    const notes = view.notes.join("\n");
    if (notes !== this.noted) {
      this.noted = notes;
      this.notes.replaceChildren(...view.notes.map((note) => h("li", {}, note)));
    }
  }

  replicas(all) {
    const wanted = this.filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    let found = this.only.checked ? all.filter((r) => rows.ill(r) || notWell(r)) : all;
    if (wanted.length) {
      found = found.filter((r) => {
        const text = `${r.id} ${r.model} ${r.state} ${r.host} ${r.zone} ${r.group} ${r.incidents.join(" ")}`.toLowerCase();
        return wanted.every((word) => text.includes(word));
      });
    }
    const shown = this.tables.replicas.order(worstFirst(found, notWell)).slice(0, this.most);
    this.tables.replicas.update(shown);
    const gone = all.reduce((n, r) => n + ended(r), 0);
    put(this.matched, found.length < all.length ? `${found.length} of ${all.length} replicas`
      : `${all.length - gone} replicas${gone ? ` and ${gone} that ended` : ""}`);
    const whole = shown.length >= found.length;
    if (this.more.hidden !== whole) this.more.hidden = whole;
    put(this.more, `Show ${Math.min(PAGE, found.length - shown.length)} more of ${found.length - shown.length}`);
  }

  judge(view) {
    const open = view.incidents.length;
    const gone = view.models.filter((m) => m.replicas > 0 && m.ready === 0).length;
    const there = view.replicas.filter((r) => !ended(r));
    const unwell = there.reduce((n, r) => n + notWell(r), 0);
    const failing = view.sources.filter((s) => s.error).length;
    const parts = [];
    if (open) parts.push(`${many(open, "open incident")}`);
    if (gone) parts.push(`${many(gone, "model")} without a ready replica`);
    const gateways = view.totals.gateways, up = view.totals.gateways_ready ?? gateways;
    if (up === 0) parts.push("no gateway accepts clients");
    else if (up < gateways) parts.push(`${gateways - up} of ${many(gateways, "gateway")} not ready`);
    if (unwell) parts.push(`${unwell} of ${many(there.length, "replica")} not ready`);
    if (view.unmet.length) parts.push(`${many(view.unmet.length, "demand")} that cannot be met`);
    if (failing) parts.push(`${many(failing, "source part")} failing`);
    const cls = open || gone || up === 0 ? "bad" : parts.length ? "warn" : "good";
    put(this.verdict, parts.length ? parts.join(" · ") : `All well: ${many(there.length, "replica")} of ${many(view.models.length, "model")}`);
    if (this.verdict.className !== `verdict mark ${cls}`) this.verdict.className = `verdict mark ${cls}`;
    this.count(view, open, there);
  }

  count(view, open, there) {
    const ready = there.reduce((n, r) => n + (r.state === "ready" || (!r.routed && r.state === "running")), 0);
    const sum = (list, get) => list.reduce((n, one) => get(one) === null ? n : (n ?? 0) + get(one), null);
    const dead = sum(view.queues, (q) => q.dead_letters);
    let worst = null;
    for (const m of view.models) if (m.burn !== null && (!worst || m.burn > worst.burn)) worst = m;
    const gateways = view.totals.gateways;
    this.tiles.set(0, count(open), open ? "bad mark" : "good mark");
    this.tiles.set(1, of(ready, there.length), ready < there.length ? "warn mark" : "");
    this.tiles.set(2, short(view.totals.requests_s));
    this.tiles.set(3, short(view.totals.tokens_s));
    this.tiles.set(4, count(sum(view.models, (m) => m.waiting)));
    this.tiles.set(5, count(dead), dead ? "bad mark" : "");
    this.tiles.set(6, worst ? short(worst.burn) : DASH, worst && worst.burn > 1 ? (worst.burn >= 6 ? "bad mark" : "warn mark") : "",
      worst && worst.burn > 1 ? worst.name : "");
    const up = view.totals.gateways_ready ?? gateways;
    this.tiles.set(7, of(up, gateways), up < gateways ? "warn mark" : "");
  }

  async chart() {
    const now = Date.now() / 1000, since = now - WINDOW_S;
    try {
      const fleet = await history("fleet/all/", since);
      this.traffic.set([{ label: "requests/s", points: fleet["fleet/all/requests_s"] }], since, now);
      const models = [...(live.view?.models || [])].sort((a, b) => (b.burn ?? -1) - (a.burn ?? -1)).slice(0, BURNERS);
      const burn = await historyOf(models.map((m) => `model/${m.name}/burn`), since);
      this.burn.set(models.map((m) => ({ label: m.name, points: burn[`model/${m.name}/burn`] })), since, now);
    } catch (error) {
      this.charts.forEach((chart) => put(chart.none, `no history: ${error.message}`));
    }
  }

  async pastIncidents() {
    if (!this.past.open) return;
    this.closed ??= table("Closed incidents", rows.pastColumns, (r) => r.id, "None.");
    if (!this.closed.element.isConnected) this.past.append(this.closed.element);
    try {
      const found = await get("/incidents?stage=closed&limit=20");
      this.closed.update(found.incidents.reverse());
    } catch (error) {
      put(this.closed.none, error.message);
    }
  }
}

export class Tiles {
  constructor(labels) {
    this.cells = labels.map((label) => {
      const value = h("dd", {}), note = h("dd", { class: "faint small-text" });
      return { value, note, box: h("div", { class: "tile" }, h("dt", {}, label), value, note) };
    });
    this.element = h("dl", { class: "tiles" }, this.cells.map((cell) => cell.box));
  }

  set(place, text, cls = "", note = "") {
    const cell = this.cells[place];
    put(cell.value, text);
    put(cell.note, note);
    if (cell.value.className !== cls) cell.value.className = cls;
  }
}

function table(label, columns, key, empty, sortable = false) {
  return new KeyedTable(label, columns, key, { empty, sortable });
}

const WELL = new Set(["ready", "running"]);
export const notWell = (r) => !WELL.has(r.state);
const ended = (r) => !r.routed && r.state === "stopped"; // a platform shows it a while, and runs another
const burning = (m) => m.burn >= 6 ? 2 : m.burn > 1 ? 1 : 0; // in steps, so that rows stay put
const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// In four heaps, each in its order: a row moves only when it falls ill or recovers.
function worstFirst(list, unwell) {
  const heaps = [[], [], [], []];
  for (const row of list) {
    heaps[row.incidents.length ? 0 : unwell(row) ? 1 : row.faults.length ? 2 : 3].push(row);
  }
  return heaps.flat();
}

export { table };
