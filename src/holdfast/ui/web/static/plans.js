// The plans of `holdfast plan`: a form made of each plan's fields, and its answer as it is printed.

import { h, panel, put } from "./dom.js";
import { get } from "./server.js";
import { plainTable } from "./table.js";

const NUMBERS = new Set(["count", "number"]);

export class PlanForms {
  constructor(root) {
    this.kind = h("select", { id: "p-kind", onchange: () => this.form() });
    this.fields = h("form", { class: "whatif", onsubmit: (event) => { event.preventDefault(); this.ask(); } });
    this.problem = h("p", { class: "bad", role: "alert" });
    this.run = h("button", { type: "submit", class: "main" }, "Plan");
    this.answer = h("div", { "aria-live": "polite" });
    this.inputs = new Map();
    root.append(h("h2", {}, "Plan"),
      h("p", { class: "lead" }, "The same plans as on the command line. Empty fields have their defaults; sizes and times may carry units (24GB, 5m)."),
      h("div", { class: "tools" }, h("label", { for: "p-kind" }, "Plan of "), this.kind), this.fields, this.answer);
    this.load();
  }

  async load() {
    try {
      this.plans = (await get("/plans")).plans;
    } catch (error) {
      this.fields.replaceChildren(h("p", { class: "bad", role: "alert" }, error.message));
      return;
    }
    this.kind.replaceChildren(...this.plans.map((one) => h("option", { value: one.plan }, one.plan)));
    this.form();
  }

  form() {
    const chosen = this.plans.find((one) => one.plan === this.kind.value);
    this.inputs = new Map(chosen.fields.map((field) => [field.name, input(field)]));
    const groups = [...new Set(chosen.fields.map((field) => field.group))].filter(Boolean);
    const rows = (fields) => fields.map((field) => h("div", { class: "field" },
      h("label", { for: `p-${field.name}` }, field.help), this.inputs.get(field.name)));
    const others = chosen.fields.filter((field) => !field.group);
    put(this.problem, "");
    this.answer.replaceChildren();
    this.fields.replaceChildren(
      h("p", { class: "tools" }, chosen.title),
      ...groups.map((group) => h("fieldset", {}, h("legend", {}, group),
        rows(chosen.fields.filter((field) => field.group === group)))),
      others.length ? h("fieldset", {}, h("legend", {}, "More"), h("details", {}, h("summary", {}, `${others.length} more`), rows(others))) : "",
      h("div", { class: "tools" }, this.run, this.problem));
  }

  async ask() {
    const given = new URLSearchParams();
    for (const [name, control] of this.inputs) {
      const value = control.type === "checkbox" ? (control.checked ? "true" : "") : control.value;
      if (value !== "") given.set(name, value);
    }
    this.run.disabled = true;
    put(this.run, "Planning …");
    put(this.problem, "");
    try {
      this.show(await get(`/plans/${this.kind.value}?${given}`));
    } catch (error) {
      put(this.problem, error.message);
    }
    this.run.disabled = false;
    put(this.run, "Plan");
  }

  show(told) {
    const table = (one) => plainTable(one.title, one.headings,
      one.rows.map((row, place) => place === one.marked ? [`▸ ${row[0]}`, ...row.slice(1)] : row));
    const parts = [panel("Answer", {}, h("p", {}, told.opening), told.tables.map(table), h("p", { class: "big" }, told.verdict),
      h("ul", { class: "notes" }, [...told.remarks, ...told.notes].map((line) => h("li", {}, line))))];
    // An image cannot run scripts, whatever it holds.
    for (const chart of told.charts) {
      parts.push(panel(chart.title, {}, h("img", { class: "chart", alt: `${chart.title}; the figures are in the tables`,
        src: `data:image/svg+xml,${encodeURIComponent(chart.svg)}` })));
    }
    if (told.steps.length) {
      parts.push(panel("Calculation", {}, h("dl", { class: "steps" }, told.steps.flatMap((step) => [
        h("dt", {}, step.what), h("dd", {}, step.formula), h("dd", {}, step.numbers)]))));
    }
    for (const snippet of told.snippets) parts.push(panel(snippet.title, {}, h("pre", { class: "log" }, snippet.text)));
    this.answer.replaceChildren(h("div", { class: "grid" }, parts));
  }
}

function input(field) {
  const id = `p-${field.name}`;
  if (field.kind === "choice") {
    return h("select", { id }, h("option", { value: "" }, field.default ?? "choose"),
      field.choices.map((one) => h("option", { value: one }, one)));
  }
  if (field.kind === "flag") return h("input", { id, type: "checkbox" });
  return h("input", { id, type: "text", autocomplete: "off", spellcheck: "false",
    inputmode: NUMBERS.has(field.kind) ? "decimal" : null,
    placeholder: field.default === null || field.default === undefined ? "" : String(field.default) });
}
