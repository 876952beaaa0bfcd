// One model over all its replicas.

import { Chart, linesOf, rangePicker } from "./charts.js";
import { ask } from "./dialogs.js";
import { api, h, panel, path, put } from "./dom.js";
import * as f from "./format.js";
import { live } from "./live.js";
import { notWell, table, Tiles } from "./overview.js";
import * as rows from "./rows.js";
import { history } from "./server.js";

export function model(root, name) {
  const page = new ModelPage(root, name);
  const leave = live.subscribe((view) => page.update(view));
  page.load();
  const timer = setInterval(() => page.load(), 15000);
  return { title: name, close() { leave(); clearInterval(timer); page.charts.forEach((one) => one.close()); } };
}

class ModelPage {
  constructor(root, name) {
    this.name = name;
    this.range = 3600;
    this.tiles = new Tiles(["ready", "waiting", "requests/s", "tokens/s", "TTFT", "KV in use", "prefix hits", "errors", "burn"]);
    this.trouble = h("p", { class: "lead" });
    this.incidents = h("p", { class: "links" });
    this.queue = new Chart("Requests that wait", { unit: f.short, floor: 0 });
    this.requests = new Chart("Requests/s", { unit: f.short, floor: 0 });
    this.errors = new Chart("Errors", { unit: f.share, floor: 0 });
    this.tokens = new Chart("Tokens/s", { unit: f.short, floor: 0 });
    this.first = new Chart("Time to first token", { unit: f.took, floor: 0 });
    this.kv = new Chart("KV cache in use", { unit: f.share, floor: 0 });
    this.prefix = new Chart("Prefix cache hits", { unit: f.share, floor: 0 });
    this.burn = new Chart("SLO burn", { unit: f.short, floor: 0 });
    this.drift = new Chart("Drift of answers", { unit: f.short,
      note: "What answers look like beside the baseline that was learned." });
    this.cusum = new Chart("CUSUM", { unit: f.short, floor: 0,
      note: "Sum of what lies beyond the baseline; an alarm above its limit." });
    this.charts = [this.queue, this.requests, this.errors, this.tokens, this.first, this.kv, this.prefix, this.burn, this.drift, this.cusum];
    this.replicas = table("Replicas", rows.replicaColumns, (r) => r.id, "It has no replica.", true);
    this.replicas.rowClass = rows.rowClass;
    this.replicas.onsort = () => live.view && this.update(live.view);
    this.queues = table("Queues", rows.queueColumns, (r) => r.source + r.name, "No queue of a platform.");
    this.wanted = h("input", { type: "number", id: "wanted", min: "0", max: "256", step: "1", required: true });
    this.said = h("p", { role: "status", class: "said" });
    this.build(root);
  }

  build(root) {
    const form = h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); this.scale(); } },
      h("label", { for: "wanted" }, "Replicas wanted "), this.wanted, h("button", { type: "submit" }, "Scale"));
    root.append(h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "/ui/" }, "Overview"), " › ",
      h("span", { "aria-current": "page" }, this.name)),
    h("h1", {}, this.name), this.trouble, this.incidents, this.tiles.element, form, this.said,
    rangePicker("Time shown in charts", this.range, (s) => { this.range = s; this.load(); }),
    h("div", { class: "grid" },
      this.queue.panel(), this.requests.panel(), this.tokens.panel(), this.first.panel(), this.errors.panel(), this.burn.panel(), this.kv.panel(), this.prefix.panel()),
    h("div", { class: "pair" }, this.drift.panel(), this.cusum.panel()),
    panel("Replicas", {}, this.replicas.element), panel("Backlog", {}, this.queues.element));
  }

  scale() {
    const wanted = Number(this.wanted.value);
    ask(`Run ${wanted} replicas of ${this.name}?`, `It has ${this.row ? this.row.replicas : "some"} now. Replicas that are too many are drained first.`,
      "Scale", api.model(this.name, "scale"), { replicas: wanted }, (said) => put(this.said, said));
  }

  update(view) {
    const row = view.models.find((m) => m.name === this.name);
    this.row = row;
    this.replicas.update(this.replicas.order(view.replicas.filter((r) => r.model === this.name)
      .sort((a, b) => (notWell(b) + rows.ill(b)) - (notWell(a) + rows.ill(a)))));
    this.queues.update(view.queues.filter((q) => q.model === this.name));
    if (!row) {
      put(this.trouble, "No model of this name is in the fleet now.");
      return;
    }
    put(this.trouble, row.faults.join(" · "));
    const ids = row.incidents.join(" ");
    if (ids !== this.ids) {
      this.ids = ids;
      this.incidents.replaceChildren(...row.incidents.flatMap((one) => [h("a", { href: path.incident(one), class: "bad mark" }, one), " "]));
    }
    if (!this.wanted.value && document.activeElement !== this.wanted) this.wanted.value = String(row.desired ?? row.replicas);
    const few = row.ready < (row.desired ?? row.replicas);
    const values = [[f.of(row.ready, row.replicas), row.replicas && !row.ready ? "bad mark" : few ? "warn mark" : ""],
      [f.count(row.waiting)], [f.short(row.requests_s)], [f.short(row.tokens_s)], [f.took(row.ttft_s)],
      [f.share(row.kv_used), row.kv_used > 0.9 ? "warn mark" : ""], [f.share(row.prefix_hits)], [f.share(row.errors_share)],
      [f.short(row.burn), row.burn >= 6 ? "bad mark" : row.burn > 1 ? "warn mark" : ""]];
    values.forEach(([text, cls], at) => this.tiles.set(at, text, cls));
  }

  async load() {
    const until = Date.now() / 1000, since = until - this.range;
    try {
      const series = await history(`model/${this.name}/`, since);
      const draw = (chart, ...wanted) => chart.set(linesOf(series, wanted), since, until);
      draw(this.queue, ["waiting", "waiting"], ["inflight", "in flight"]);
      draw(this.requests, ["requests_s", "requests/s"]);
      draw(this.tokens, ["tokens_s", "tokens/s"]);
      draw(this.first, ["ttft_s", "median"], ["ttft_p99_s", "99 %"]);
      draw(this.kv, ["kv_used", "mean of replicas"]);
      draw(this.prefix, ["prefix_hits", "share of hits"]);
      draw(this.errors, ["errors_share", "of requests"]);
      draw(this.burn, ["burn", "budget spent in the last hour"]);
      draw(this.drift, ["drift", "now"], ["baseline", "baseline", { tone: "muted" }]);
      draw(this.cusum, ["cusum", "summed"], ["cusum_limit", "alarm", { tone: "bad" }]);
    } catch (error) {
      this.charts.forEach((chart) => put(chart.none, `no history: ${error.message}`));
    }
  }
}
