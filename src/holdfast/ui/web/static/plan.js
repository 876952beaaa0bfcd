// What would be if: the running fleet beside one with other replicas, traffic or zones.

import { h, panel, put } from "./dom.js";
import * as f from "./format.js";
import { PlanForms } from "./plans.js";
import { get, order } from "./server.js";
import { plainTable } from "./table.js";

export function plan(root) {
  const page = new PlanPage(root);
  page.load();
  return { title: "What if", close() {} };
}

const FIELDS = [
  ["replicas", "Replicas", { min: 1, max: 256, step: 1 }, (m) => m.replicas],
  ["traffic", "Traffic × ", { min: 0.01, max: 100, step: "any" }, () => 1],
  ["rate", "Requests/s now", { min: 0.01, max: 10000, step: "any" }, (m) => m.requests_s],
  ["prompt", "Prompt tokens, mean", { min: 1, max: 32000, step: "any" }, () => 500],
  ["output", "Answer tokens, mean", { min: 1, max: 32000, step: "any" }, (m) => Math.round(m.output_tokens ?? 200)],
  ["stream_tokens_s", "Tokens/s of one answer on an idle replica", { min: 0.1, max: 10000, step: "any" }, () => 75],
  ["first_token_s", "SLO: first token within, s", { min: 0.01, max: 600, step: "any" }, (m) => m.first_token_s ?? 2],
  ["availability", "One replica is up, share of time", { min: 0.5, max: 0.999999, step: "any" }, () => 0.99],
  ["zone_availability", "One zone is up, share of time", { min: 0.5, max: 1, step: "any" }, () => 0.9999],
  ["target", "Wanted availability", { min: 0.5, max: 0.99999999, step: "any" }, () => 0.999],
];

class PlanPage {
  constructor(root) {
    this.inputs = new Map(FIELDS.map(([name, , attributes]) =>
      [name, h("input", { type: "number", id: `w-${name}`, name, required: true, ...attributes })]));
    this.model = h("select", { id: "w-model", onchange: () => this.fill() });
    this.zone = h("select", { id: "w-zone" });
    this.routing = h("select", { id: "w-routing" });
    this.hedge = h("select", { id: "w-hedge" }, [["", "as it is"], ["on", "on"], ["off", "off"]].map(([value, label]) => h("option", { value }, label)));
    this.deadline = h("input", { type: "number", id: "w-deadline", min: 0, max: 86400, step: "any", placeholder: "as it is" });
    this.fault = h("select", { id: "w-fault" });
    this.seeds = h("input", { type: "number", id: "w-seeds", min: 1, max: 10, step: 1, value: 3 });
    this.twin = h("input", { type: "file", id: "w-twin", accept: ".json,application/json" });
    this.problem = h("p", { class: "bad", role: "alert" });
    this.run = h("button", { type: "submit", class: "main" }, "Simulate");
    this.result = h("div", { "aria-live": "polite" });
    const field = (id, label, control) => h("div", { class: "field" }, h("label", { for: id }, label), control);
    const named = (name) => {
      const [, label] = FIELDS.find(([one]) => one === name);
      return field(`w-${name}`, label, this.inputs.get(name));
    };
    const form = h("form", { class: "whatif", onsubmit: (event) => { event.preventDefault(); this.ask(); } },
      h("fieldset", {}, h("legend", {}, "What changes"), field("w-model", "Model", this.model),
        named("replicas"), field("w-zone", "A zone is lost for a third of the time", this.zone), named("traffic")),
      h("fieldset", {}, h("legend", {}, "Policies and faults"), field("w-routing", "Routing", this.routing),
        field("w-hedge", "Hedging", this.hedge), field("w-deadline", "A request may take, s", this.deadline),
        field("w-fault", "One replica has a fault for a third of the time", this.fault),
        field("w-seeds", "Runs of each fleet", this.seeds), field("w-twin", "twin.json of 'holdfast twin calibrate'", this.twin)),
      h("fieldset", {}, h("legend", {}, "What it is like now"), ["rate", "prompt", "output", "stream_tokens_s", "first_token_s"].map(named)),
      h("fieldset", {}, h("legend", {}, "For the plan"), ["availability", "zone_availability", "target"].map(named)),
      h("div", { class: "tools" }, this.run, this.problem));
    root.append(h("h1", {}, "What if"),
      h("p", { class: "lead" }, "The running fleet and its policies are simulated twice, as they are and as they would be, with the same arrivals. Nothing is changed by it."),
      form, this.result);
    this.plans = new PlanForms(root);
  }

  async load() {
    try {
      const told = await get("/whatif");
      this.known = told.models;
      this.routing.replaceChildren(h("option", { value: "" }, "as it is"), ...told.routings.map((name) => h("option", { value: name }, name.replaceAll("_", " "))));
      this.fault.replaceChildren(h("option", { value: "" }, "none"), ...told.faults.map((name) => h("option", { value: name }, name.replaceAll("_", " "))));
      this.seeds.max = told.seeds_max;
    } catch (error) {
      put(this.problem, error.message);
      return;
    }
    this.model.replaceChildren(...this.known.map((m) => h("option", {}, m.model)));
    this.fill();
  }

  fill() {
    const chosen = this.known.find((m) => m.model === this.model.value);
    if (!chosen) return;
    for (const [name, , , first] of FIELDS) {
      const value = first(chosen);
      this.inputs.get(name).value = value === null || value === undefined ? "" : String(Number(value.toPrecision(6)));
    }
    this.zone.replaceChildren(h("option", { value: "" }, "none"), ...chosen.zones.map((z) => h("option", { value: z }, z)));
  }

  async ask() {
    const body = { model: this.model.value, lost_zone: this.zone.value };
    for (const [name, input] of this.inputs) body[name] = input.value === "" ? null : Number(input.value);
    Object.assign(body, { routing: this.routing.value, fault: this.fault.value, seeds: Number(this.seeds.value) || 1,
      hedge: this.hedge.value === "" ? null : this.hedge.value === "on", deadline_s: this.deadline.value === "" ? null : Number(this.deadline.value) });
    const [chosen] = this.twin.files;
    if (chosen) {
      try {
        body.twin = JSON.parse(await chosen.text());
      } catch {
        put(this.problem, `${chosen.name} is no JSON; choose a file that 'holdfast twin calibrate' wrote`);
        return;
      }
    }
    this.run.disabled = true;
    put(this.run, "Simulating …");
    put(this.problem, "");
    try {
      this.show(await order("/whatif", body));
    } catch (error) {
      put(this.problem, error.message);
    }
    this.run.disabled = false;
    put(this.run, "Simulate");
  }

  show(told) {
    const q = told.question;
    const change = [`${q.replicas} replicas`, `${f.short(q.rate * q.traffic)} requests/s`, q.lost_zone ? `${q.lost_zone} lost for a third of the time` : ""].filter(Boolean).join(", ");
    const { now, then } = told;
    const p = (account, name, which) => f.took(account.total[name][which]);
    const rows = [
      ["answered well", (a) => f.nines(a.total.goodput)],
      [`first token within ${f.took(q.first_token_s)}`, (a) => f.nines(a.total.slo_attainment)],
      ["refused (429, 503)", (a) => f.count(a.total.refused)], ["failed", (a) => f.count(a.total.failed)],
      ["requests", (a) => f.count(a.total.offered)],
      ["first token, median", (a) => p(a, "first_token_s", "p50")], ["first token, 95 %", (a) => p(a, "first_token_s", "p95")],
      ["first token, 99 %", (a) => p(a, "first_token_s", "p99")], ["whole answer, 95 %", (a) => p(a, "latency_s", "p95")],
      ["attempts per request", (a) => f.short(a.total.amplification)], ["continued elsewhere", (a) => f.count(a.total.continued)],
    ].map(([label, get]) => [label, get(now), get(then)]);
    const parts = [panel("Simulated", {}, h("p", {}, `${f.lasts(told.duration_s)} of traffic, in ${f.took(told.took_s)}.`),
      h("ul", { class: "notes" }, h("li", {}, `now: ${q.standing.replicas} replicas, ${f.short(q.rate)} requests/s`), h("li", {}, `then: ${change}`)),
      plainTable("Simulated", ["", "now", "then"], rows))];
    if (told.question.seeds > 1) parts.push(this.differences(told));
    if (told.changes.length) {
      parts.push(panel("To apply", {}, h("p", {}, "In the fleet file:"), plainTable("To apply", ["key", "now", "then"],
        told.changes.map((one) => [one.key, one.before === null ? "as it is" : String(one.before), String(one.after)]))));
    }
    if (q.lost_zone || q.fault) parts.push(this.phases(then, q.lost_zone ? ["zone lost", "zone back"] : ["in trouble", "afterwards"]));
    parts.push(this.planned(told));
    this.result.replaceChildren(h("div", { class: "grid" }, parts));
  }

  differences(told) {
    const units = { share: [100, " pt"], s: [1000, " ms"], ratio: [1, ""] };
    const rows = told.differences.filter((one) => one.change).map((one) => {
      const { mean, low, high } = one.change;
      if (low === 0 && high === 0) return [one.label, "same", ""];
      const most = Math.max(Math.abs(low), Math.abs(high));
      const [times, unit] = one.unit === "s" && most >= 1 ? [1, " s"] : units[one.unit] ?? [1, ""];
      const digits = Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(most * times))));
      const size = (value) => (value < 0 ? "−" : "+") + Math.abs(value * times).toFixed(digits);
      const interval = low === high ? "in every run" : `${size(low)} to ${size(high)}`;
      return [one.label, `${size(mean)}${unit}${one.clear ? " *" : ""}`, interval];
    });
    const told95 = `Over ${told.question.seeds} runs with the same arrivals; 95 % intervals. A * is no chance.`;
    return panel("Difference", {}, h("p", {}, told95), plainTable("Difference", ["", "then − now", "interval"], rows));
  }

  phases(then, [during, after]) {
    const names = { before: "before", during, after };
    return panel("By phase, then", {}, plainTable("By phase", ["", "answered", "in the SLO", "TTFT, 95 %"],
      Object.entries(then.phases).map(([name, one]) => [names[name], f.nines(one.goodput), f.nines(one.slo_attainment), f.took(one.first_token_s.p95)])));
  }

  planned(told) {
    const rows = told.redundancy.map((one) => [one.label, f.count(one.replicas), f.count(one.need), f.count(one.spares),
      one.spares < 0 ? "too few" : f.nines(one.availability)]);
    const plan = told.plan;
    return panel("Planned", {},
      h("p", {}, `One replica does ${f.short(told.replica_requests_s)} requests/s with its batch full; 80 % of that is counted on.`),
      plainTable("Availability", ["", "replicas", "needed", "spares", "availability"], rows),
      h("p", { class: "big" }, plan ? `For ${f.nines(plan.target)}: ${plan.replicas} replicas, ${plan.spares} of them spare, give ${f.nines(plan.availability)}.` : told.plan_problem),
      plan ? h("ul", { class: "notes" }, plan.notes.map((note) => h("li", {}, note))) : null);
  }
}
