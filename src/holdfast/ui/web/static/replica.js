// One replica: what it is, how it was, what it wrote, and what can be ordered.

import { Chart, linesOf, rangePicker } from "./charts.js";
import { ask } from "./dialogs.js";
import { api, h, panel, path, put, stateClass } from "./dom.js";
import * as f from "./format.js";
import { segments, Strips } from "./life.js";
import { live } from "./live.js";
import { get, getText, history } from "./server.js";
import { KeyedTable } from "./table.js";

export function replica(root, id) {
  const page = new ReplicaPage(root, id);
  const leave = live.subscribe((view) => page.update(view));
  page.load();
  const timer = setInterval(() => page.load(), 10000);
  return { title: id, close() { leave(); clearInterval(timer); page.close(); } };
}

// What an inference server counts; nothing for other engines.
function inferences(row) {
  if (row.inferences_s === null) return [];
  return [["inferences/s", f.short(row.inferences_s)], ["failed", f.share(row.failed_share)],
    ["in its queue", f.took(row.queue_s)], ["computing", f.took(row.compute_s)], ["batch", f.short(row.batch)],
    ["GPU memory", f.of(row.engine_gpu_used_bytes, row.engine_gpu_total_bytes, f.bytes)]];
}

const eventColumns = [
  { label: "when", head: true, text: (r) => f.clock(r.at) },
  { label: "ago", num: true, text: (r) => f.ago(r.at) },
  { label: "what", text: (r) => r.what, cls: (r) => stateClass(r.what).endsWith("unknown") ? "" : stateClass(r.what) },
  { label: "class", text: (r) => f.text(r.kind) },
  { label: "why", text: (r) => f.text(r.reason), cls: () => "wider" },
];

const LENIENT = new Set(["slow", "busy", "unsettled", "unknown"]); // these say nothing bad of its answers

function verdictClass(verdict) {
  if (verdict === "pass") return "";
  return LENIENT.has(verdict) ? "warn mark" : "bad mark";
}

const canaryColumns = [
  { label: "when", head: true, text: (r) => f.clock(r.at) },
  { label: "verdict", text: (r) => r.verdict, cls: (r) => verdictClass(r.verdict) },
  { label: "took", num: true, text: (r) => f.took(r.latency_s) },
  { label: "why", text: (r) => f.text(r.detail), cls: () => "wider" },
];

// The GPUs of a replica in one line; what is not known is left out.
function gpu(g) {
  if (!g) return f.DASH;
  const told = [f.of(g.held_bytes ?? g.memory_used_bytes, g.memory_total_bytes, f.bytes)];
  if (g.utilisation !== null) told.push(`${f.share(g.utilisation)} busy`);
  if (g.temperature_c !== null) told.push(`${f.count(g.temperature_c)} °C`);
  if (g.power_w !== null) told.push(`${f.count(Math.round(g.power_w))} W`);
  if (g.ecc_uncorrected) told.push(`${g.ecc_uncorrected} uncorrected memory errors`);
  if (g.xid) told.push(`Xid ${g.xid}`);
  return told.join(", ");
}

class ReplicaPage {
  constructor(root, id) {
    this.id = id;
    this.range = 3600;
    this.state = h("span", {});
    this.reason = h("p", { class: "lead" });
    this.facts = h("dl", { class: "facts" });
    this.incidents = h("p", { class: "links" });
    this.drain = this.order("Drain", "drain", "It gets nothing new and finishes what it has.");
    this.undrain = this.order("Undrain", "undrain", "It is taken back into service.");
    this.buttons = h("div", { class: "tools" }, this.drain, this.undrain, this.order("Restart", "restart", "It is drained and started anew."));
    this.said = h("p", { role: "status", class: "said" });
    this.strip = new Strips("States", { named: false, rowHeight: 30 });
    this.canary = new Chart("Canary latency", { unit: f.took, floor: 0 });
    this.speed = new Chart("Time to first token, and per token", { unit: f.took, floor: 0 });
    this.memory = new Chart("Memory", { unit: f.bytes, floor: 0, binary: true });
    this.work = new Chart("Requests", { unit: f.short, floor: 0 });
    this.kv = new Chart("KV cache in use", { unit: f.share, floor: 0 });
    this.tokens = new Chart("Tokens/s", { unit: f.short, floor: 0 });
    this.charts = [this.canary, this.speed, this.memory, this.work, this.kv, this.tokens];
    this.verdict = this.canary.lead;
    this.canaries = new KeyedTable("Last canaries", canaryColumns, (r) => r.at, { empty: "It was not asked yet." });
    this.events = new KeyedTable("Events", eventColumns, (r) => `${r.at}${r.what}${r.reason}`, { empty: "Nothing happened to it." });
    this.log = h("pre", { class: "log", tabindex: "0", "aria-label": "The end of its log" });
    this.follow = h("input", { type: "checkbox", id: "follow", checked: true });
    this.build(root);
    this.logTimer = setInterval(() => { if (this.viewed && this.follow.checked && !document.hidden) this.readLog(); }, 3000);
  }

  build(root) {
    root.append(h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "/ui/" }, "Overview"), " › ",
      this.model = h("a", {}), " › ", h("span", { "aria-current": "page" }, this.id)),
    h("h1", {}, this.id, " ", this.state), this.reason, this.incidents, this.buttons, this.said, this.facts,
    rangePicker("Time shown in charts", this.range, (s) => { this.range = s; this.load(); }),
    h("section", { class: "panel", "aria-label": "States" }, this.strip.element),
    h("div", { class: "grid" },
      this.canary.panel(), panel("Last canaries", { class: "brief" }, this.canaries.element), this.speed.panel(), this.memory.panel(), this.work.panel(), this.kv.panel(), this.tokens.panel()),
    panel("What happened", {}, this.events.element),
    panel("Log", {}, h("div", { class: "tools" }, h("label", { class: "check" }, this.follow, " follow")), this.log));
  }

  order(label, what, means) {
    return h("button", { type: "button", onclick: () => ask(`${label} ${this.id}?`, means, label,
      api.replica(this.id, what), undefined, (said) => put(this.said, said)) }, label);
  }

  close() {
    clearInterval(this.logTimer);
    this.strip.close();
    this.charts.forEach((chart) => chart.close());
  }

  update(view) {
    const row = view.replicas.find((r) => r.id === this.id);
    this.row = row;
    if (!this.viewed) {
      this.viewed = true;
      this.readCanaries();
      this.readLog();
    }
    if (!row) {
      put(this.state, "not in the fleet now");
      return;
    }
    put(this.state, row.state);
    if (this.state.className !== stateClass(row.state)) this.state.className = stateClass(row.state);
    put(this.reason, [row.reason, ...row.faults].filter(Boolean).join(" · "));
    put(this.model, row.model);
    this.model.setAttribute("href", path.model(row.model));
    const leaving = row.state === "draining" || row.state === "stopped";
    for (const [part, hidden] of [[this.buttons, !row.routed], [this.drain, leaving], [this.undrain, !leaving]]) {
      if (part.hidden !== hidden) part.hidden = hidden;
    }
    const ids = row.incidents.join(" ");
    if (ids !== this.ids) {
      this.ids = ids;
      this.incidents.replaceChildren(...row.incidents.flatMap((one) => [h("a", { href: path.incident(one), class: "bad mark" }, one), " "]));
    }
    this.writeFacts(row);
    put(this.memory.lead, row.exhausted_in_s === null ? "" : `It climbs: full in about ${f.lasts(row.exhausted_in_s)}.`);
  }

  writeFacts(row) {
    const facts = [["share of requests", f.share(row.share)], ["in flight", f.count(row.inflight)],
      ["in the engine", row.running === null && row.waiting === null ? f.DASH : `${f.count(row.running)} + ${f.count(row.waiting)} waiting`],
      ["TTFT", f.took(row.ttft_s)], ["per token", f.took(row.tpot_s)], ["tokens/s", f.short(row.tokens_s)], ["KV", f.share(row.kv_used)],
      ...inferences(row),
      ["memory", f.of(row.used_bytes, row.limit_bytes ?? row.reserved_bytes, f.bytes)],
      ["reserved", f.bytes(row.reserved_bytes)], ["silent", f.lasts(row.silent_s)], ["up", f.lasts(row.uptime_s)],
      ["restarts", f.count(row.restarts)], ["revision", f.text(row.revision)], ["phase", f.text(row.phase)],
      ["host", f.text(row.host)], ["group", f.text(row.group)], ["zone", f.text(row.zone)],
      ["GPUs", row.gpus === 0 ? "no GPU" : f.count(row.gpus)], ["GPU", gpu(row.gpu)], ["endpoint", f.text(row.endpoint)], ["image", f.text(row.image)],
      ["filesystem", f.text(row.filesystem)], ["log stream", f.text(row.log_stream)], ["seen by", row.age_s === null ? row.source : `${row.source}, ${f.lasts(row.age_s)} ago`]];
    if (!this.cells) {
      this.cells = facts.map(() => h("dd", {}));
      this.facts.append(...facts.map(([name], at) => h("div", {}, h("dt", {}, name), this.cells[at])));
    }
    facts.forEach(([, value], at) => put(this.cells[at], value));
  }

  async load() {
    const until = Date.now() / 1000, since = until - this.range;
    try {
      const found = await get(`/events?limit=500&replica=${encodeURIComponent(this.id)}`);
      const events = found.events;
      this.events.update([...events].reverse().slice(0, 100));
      const present = this.row ? [this.row] : [{ id: this.id, state: "", reason: "" }];
      this.strip.set([{ id: this.id, model: "" }], segments(events, since, until, present, events.length < 500), since, until);
    } catch (error) {
      put(this.events.none, error.message);
    }
    try {
      this.draw(await history(`replica/${this.id}/`, since), since, until);
    } catch (error) {
      this.charts.forEach((chart) => put(chart.none, `no history: ${error.message}`));
    }
    if (this.viewed) await this.readCanaries(); // before that it is not known who is asked at all
  }

  draw(series, since, until) {
    const own = Object.fromEntries(Object.entries(series).filter(([name]) => name.startsWith(`replica/${this.id}/`)));
    this.canary.set(linesOf(own, [["canary_s", "latency"]]), since, until);
    this.speed.set(linesOf(own, [["ttft_s", "first token"], ["tpot_s", "per token"]]), since, until);
    this.work.set(linesOf(own, [["inflight", "in flight"], ["running", "running"], ["waiting", "waiting"]]), since, until);
    this.kv.set(linesOf(own, [["kv_used", "KV in use"]]), since, until);
    this.tokens.set(linesOf(own, [["tokens_s", "tokens/s"]]), since, until);
    const used = linesOf(own, [["used_bytes", "used"]]);
    const end = used[0]?.points.at(-1)?.[0] ?? until;
    const gone = this.row?.exhausted_in_s ?? null;
    const last = gone === null ? until : Math.max(until, Math.min(end + gone, until + this.range));
    if (used.length && this.row) {
      const level = (label, value, tone, dash) => value === null ? null : { label, tone, dash, points: [[since, value], [last, value]] };
      used.push(...[level("limit", this.row.limit_bytes, "bad", [3, 3]), level("reserved", this.row.reserved_bytes, "muted", [1, 4])].filter(Boolean));
      const full = this.row.limit_bytes ?? this.row.reserved_bytes;
      if (gone !== null && full !== null && this.row.used_bytes !== null) {
        const reached = this.row.used_bytes + (full - this.row.used_bytes) * (last - end) / gone;
        used.push({ label: "as it climbs", tone: "warn", dash: [6, 4], points: [[end, this.row.used_bytes], [last, reached]] });
      }
    }
    this.memory.set(used, since, last);
  }

  async readCanaries() {
    if (this.row && !this.row.routed) {
      put(this.verdict, "");
      put(this.canaries.none, "Holdfast asks only replicas that it routes to.");
      return;
    }
    try {
      const { canaries } = await get(api.replica(this.id, "canaries"));
      this.canaries.update([...canaries].reverse());
      const canary = canaries.at(-1);
      if (canary) put(this.verdict, `Last: ${canary.verdict}, ${f.took(canary.latency_s)}, ${f.ago(canary.at)}. ${canary.detail || ""}`);
    } catch (error) {
      put(this.verdict, `The last canaries are not known: ${error.message}`);
    }
  }

  async readLog() {
    if (this.row && !this.row.routed) { // control has no log of what it only sees
      put(this.log, `Its platform keeps its log${this.row.log_stream ? `, as ${this.row.log_stream}` : ""}.`);
      return;
    }
    try {
      const text = await getText(`${api.replica(this.id, "logs")}?lines=200`);
      if (text === this.log.textContent) return;
      const below = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
      this.log.textContent = text || "It has written nothing.";
      if (below) this.log.scrollTop = this.log.scrollHeight;
    } catch (error) {
      put(this.log, error.message);
      if (error.status === 404) this.follow.checked = false;
    }
  }
}
