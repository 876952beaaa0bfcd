// One incident, in the order in which somebody on call asks.

import { ask } from "./dialogs.js";
import { api, h, panel, path, put } from "./dom.js";
import * as f from "./format.js";
import { live } from "./live.js";
import { get } from "./server.js";
import { KeyedTable } from "./table.js";

export function incident(root, id) {
  const page = new IncidentPage(root, id);
  page.load();
  const timer = setInterval(() => page.load(), 5000);
  return { title: id, close() { clearInterval(timer); } };
}

const who = (about) => about.replica || about.filesystem || about.host || about.model || "the fleet";
const numbers = (all) => Object.entries(all || {}).map(([name, value]) => {
  const shown = typeof value !== "number" ? String(value) : name.endsWith("bytes") ? f.bytes(value)
    : name.endsWith("_s") ? f.took(value) : f.short(value);
  return `${f.words(name)} ${shown}`;
}).join(", ");

const evidenceColumns = [
  { label: "when", head: true, text: (r) => f.clock(r.at) },
  { label: "age", num: true, text: (r) => f.ago(r.at) },
  { label: "who", text: (r) => who(r.about), href: (r) => r.about.replica ? path.replica(r.about.replica) : "" },
  { label: "seen by", text: (r) => f.text(r.source) },
  { label: "sign", text: (r) => f.words(r.sign) },
  { label: "what", text: (r) => r.text, cls: () => "wider strong" },
  { label: "figures", text: (r) => f.text(numbers(r.numbers)), cls: () => "wide faint" },
];

const timelineColumns = [
  { label: "when", head: true, text: (r) => f.clock(r.at) },
  { label: "after", num: true, text: (r) => r.after === null ? f.DASH : `+${f.lasts(r.after)}` },
  { label: "what", text: (r) => f.words(r.what), cls: () => "strong" },
  { label: "who", text: (r) => f.text(r.about) },
  { label: "", text: (r) => f.text(r.text), cls: () => "wider" },
];

const STAGES = { open: "bad mark", mending: "warn mark", closed: "good mark" };

class IncidentPage {
  constructor(root, id) {
    this.id = id;
    this.title = h("h1", {}, id);
    this.stage = h("span", {});
    this.line = h("p", { class: "lead" });
    this.whom = h("p", { class: "links" });
    this.fix = h("p", { class: "big" });
    this.action = h("p", { class: "big" });
    this.cause = h("p", {});
    this.problem = h("p", { class: "bad", role: "status" });
    const key = (r) => `${r.at}${r.sign || r.what}${r.text}${JSON.stringify(r.about)}`;
    this.evidence = new KeyedTable("Evidence", evidenceColumns, key, { empty: "None was kept." });
    this.after = new KeyedTable("Consequences", evidenceColumns, key, { empty: "Nothing followed from it." });
    this.timeline = new KeyedTable("Timeline", timelineColumns, key, { empty: "Nothing yet." });
    this.close = h("button", { type: "button", onclick: () => ask(`Close ${id}?`,
      "Say that it is over. Who was taken out for it is judged by its canaries again.", "Close it",
      api.incident(id, "/close"), undefined, (said) => { put(this.problem, said); this.load(); }) }, "Close it");
    root.append(h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "/ui/" }, "Overview"), " › ",
      h("span", { "aria-current": "page" }, id)),
    this.title, this.line, this.whom, this.problem,
    h("div", { class: "pair" }, panel("What to do", { class: "todo" }, this.fix), panel("What was done", {}, this.action)),
    panel("Cause", {}, this.cause),
    panel("How we know", {}, this.evidence.element), panel("What followed from it", {}, this.after.element),
    panel("Timeline", {}, this.timeline.element),
    h("div", { class: "tools" }, h("a", { class: "button", href: api.incident(id, "/export"), download: `${id}.jsonl` }, "Export for replay"), this.close));
  }

  async load() {
    let one;
    try {
      one = await get(api.incident(this.id));
    } catch (error) {
      put(this.problem, error.message);
      return;
    }
    put(this.title, `${one.id}: ${one.title || f.words(one.cause)}`);
    put(this.stage, one.stage);
    this.stage.className = STAGES[one.stage] || "";
    const said = `${one.stage}${one.class}${one.opened_at}${one.closed_at}${one.confidence}`;
    if (said !== this.said) {
      this.said = said;
      this.line.replaceChildren(this.stage, ` · ${one.class} failure · since ${f.clock(one.opened_at)} (`,
        this.since = h("span", {}), one.closed_at ? `) · over at ${f.clock(one.closed_at)}` : ")", ` · ${f.share(one.confidence)} sure`);
    }
    put(this.since, f.ago(one.opened_at));
    const whom = one.replicas.length ? one.replicas : [];
    if (whom.join() !== this.names) {
      this.names = whom.join();
      const known = new Set((live.view?.replicas || []).map((r) => r.id));
      this.whom.replaceChildren("Concerned: ", ...(whom.length ? whom.slice(0, 40).flatMap((id, at) => [at ? ", " : "",
        known.size === 0 || known.has(id) ? h("a", { href: path.replica(id) }, id) : id]) : [who(one.about)]),
      whom.length > 40 ? ` and ${whom.length - 40} more` : "");
    }
    put(this.fix, f.text(one.fix));
    put(this.action, f.text(one.action));
    const others = one.other_causes.length ? ` It could also be: ${one.other_causes.map(f.words).join(", ")}.` : "";
    put(this.cause, `${f.words(one.cause)}, a ${one.class} failure of ${who(one.about)}; remedy: ${f.words(one.remedy)}.${others}`);
    this.evidence.update(one.evidence);
    this.after.update(one.consequences);
    this.timeline.update(one.timeline.map((entry) => ({ ...entry, after: entry.at >= one.opened_at ? entry.at - one.opened_at : null })));
    this.close.hidden = one.stage === "closed";
  }
}
