// The columns of the tables, by what their rows are.

import { path, stateClass } from "./dom.js";
import { bytes, count, DASH, lasts, of, share, short, text, took, words } from "./format.js";

const incidents = { label: "incident", links: (r) => r.incidents.map((id) => [id, path.incident(id)]) };
const faults = { label: "what is wrong", text: (r) => r.faults.length ? r.faults.join("; ") : DASH,
  cls: (r) => r.faults.length ? "fault wide" : "faint" };

export const ill = (r) => r.incidents.length > 0 || r.faults.length > 0;
export const rowClass = (r) => r.incidents.length ? "ill" : r.faults.length ? "doubt" : "";

const STAGES = { open: "bad mark", mending: "warn mark", closed: "good mark" };

export const incidentColumns = [
  { label: "incident", head: true, text: (r) => r.id, href: (r) => path.incident(r.id) },
  { label: "what", text: (r) => r.title, cls: () => "strong wide" },
  { label: "stage", text: (r) => r.stage, cls: (r) => STAGES[r.stage] || "" },
  { label: "class", text: (r) => r.failure_class },
  { label: "since", text: (r) => lasts(r.opened_s), num: true },
  { label: "sure", text: (r) => share(r.confidence), num: true },
  { label: "what followed", text: (r) => r.consequences.length ? r.consequences.join("; ") : DASH,
    cls: () => "wide" },
  { label: "done", text: (r) => text(r.action), cls: () => "wide" },
  { label: "to do", text: (r) => text(r.fix), cls: () => "wider" },
];

export const modelColumns = [
  { label: "model", head: true, text: (r) => r.name, href: (r) => path.model(r.name), sort: (r) => r.name },
  { label: "ready", num: true, hint: "ready of all replicas",
    text: (r) => of(r.ready, r.replicas),
    cls: (r) => r.replicas && !r.ready ? "bad mark" : r.ready < (r.desired ?? r.replicas) ? "warn mark" : "",
    sort: (r) => r.ready },
  { label: "waiting", num: true, text: (r) => count(r.waiting), pure: true, sort: (r) => r.waiting,
    hint: "at gateways and in queues of the platform" },
  { label: "of backlog", num: true, text: (r) => share(r.backlog_share), pure: true, sort: (r) => r.backlog_share },
  { label: "req/s", num: true, text: (r) => short(r.requests_s), pure: true, sort: (r) => r.requests_s },
  { label: "tok/s", num: true, text: (r) => short(r.tokens_s), pure: true, sort: (r) => r.tokens_s },
  { label: "TTFT", num: true, text: (r) => took(r.ttft_s), pure: true, sort: (r) => r.ttft_s,
    hint: "time to first token, median of the last minute" },
  { label: "KV", num: true, text: (r) => share(r.kv_used), cls: (r) => r.kv_used > 0.9 ? "warn mark" : "",
    pure: true, sort: (r) => r.kv_used },
  { label: "prefix", num: true, text: (r) => share(r.prefix_hits), pure: true, sort: (r) => r.prefix_hits,
    hint: "share of prompt tokens found in the prefix cache" },
  { label: "errors", num: true, text: (r) => share(r.errors_share), pure: true, sort: (r) => r.errors_share },
  { label: "burn", num: true, hint: "error budget spent in the last hour; 1 is just sustainable",
    text: (r) => short(r.burn), cls: (r) => r.burn >= 6 ? "bad mark" : r.burn > 1 ? "warn mark" : "",
    pure: true, sort: (r) => r.burn },
  incidents, faults,
];

const memory = (r) => of(r.used_bytes, r.limit_bytes ?? r.reserved_bytes, bytes);
const tight = (r) => r.used_bytes && (r.limit_bytes || r.reserved_bytes)
  ? r.used_bytes / (r.limit_bytes || r.reserved_bytes) : null;

// Of GPUs: what a replica itself holds, else what is used on its devices.
const gpuUsed = (g) => g.held_bytes ?? g.memory_used_bytes;
const gpuColumns = [
  { label: "GPU memory", num: true, only: "gpu", hint: "held by it, of its GPUs",
    text: (r) => r.gpu ? of(gpuUsed(r.gpu), r.gpu.memory_total_bytes, bytes) : DASH,
    cls: (r) => r.gpu?.memory_share > 0.9 ? "warn mark" : "", sort: (r) => r.gpu ? gpuUsed(r.gpu) : null },
  { label: "GPU", num: true, only: "gpu", hint: "share of the time with work",
    text: (r) => share(r.gpu?.utilisation ?? null), pure: true, sort: (r) => r.gpu?.utilisation ?? null },
  { label: "°C", num: true, only: "gpu", hint: "its hottest GPU",
    text: (r) => count(r.gpu?.temperature_c ?? null), pure: true, sort: (r) => r.gpu?.temperature_c ?? null },
];

export const replicaColumns = [
  { label: "replica", head: true, text: (r) => r.id, href: (r) => path.replica(r.id), sort: (r) => r.id },
  { label: "state", text: (r) => r.state, cls: (r) => stateClass(r.state), pure: true, sort: (r) => r.state },
  { label: "incident", links: incidents.links },
  { label: "model", text: (r) => r.model, pure: true, sort: (r) => r.model },
  { label: "share", num: true, text: (r) => share(r.share), pure: true, sort: (r) => r.share,
    hint: "of its model's requests" },
  { label: "in flight", num: true, text: (r) => count(r.inflight), pure: true, sort: (r) => r.inflight },
  { label: "waiting", num: true, text: (r) => count(r.waiting), pure: true, sort: (r) => r.waiting,
    hint: "in the engine" },
  { label: "KV", num: true, text: (r) => share(r.kv_used), cls: (r) => r.kv_used > 0.9 ? "warn mark" : "",
    pure: true, sort: (r) => r.kv_used },
  { label: "tok/s", num: true, text: (r) => short(r.tokens_s), pure: true, sort: (r) => r.tokens_s },
  { label: "TTFT", num: true, text: (r) => took(r.ttft_s), pure: true, sort: (r) => r.ttft_s },
  { label: "canary", num: true, text: (r) => took(r.canary_s), pure: true, sort: (r) => r.canary_s },
  { label: "memory", num: true, text: memory, sort: tight, hint: "used of its limit",
    cls: (r) => r.exhausted_in_s !== null || tight(r) > 1 ? "warn mark" : "" },
  ...gpuColumns,
  { label: "silent", num: true, text: (r) => lasts(r.silent_s), pure: true, sort: (r) => r.silent_s },
  { label: "up", num: true, text: (r) => lasts(r.uptime_s), pure: true, sort: (r) => r.uptime_s },
  { label: "host", text: (r) => text(r.host), pure: true, sort: (r) => r.host },
  { label: "zone", text: (r) => text(r.zone), pure: true, sort: (r) => r.zone },
  { label: "why", text: (r) => r.reason || (r.faults.length ? r.faults.join("; ") : DASH), cls: () => "wide" },
];

export const groupColumns = [
  { label: "group", head: true, text: (r) => r.name },
  { label: "type", text: (r) => text(r.kind) },
  { label: "market", text: (r) => text(r.market) },
  { label: "hosts", num: true, text: (r) => of(r.hosts, r.desired), hint: "there, and wanted",
    cls: (r) => r.desired !== null && r.hosts < r.desired ? "warn mark" : "" },
  { label: "up", num: true, text: (r) => lasts(r.uptime_s), hint: "its youngest host" },
  { label: "CPU left", num: true, text: (r) => of(r.cpus_free, r.cpus, short), hint: "not reserved, of all" },
  { label: "memory", num: true, text: (r) => of(r.used_bytes, r.memory_bytes, bytes), hint: "in use, of all" },
  { label: "reserved", num: true, text: (r) => of(r.reserved_bytes, r.memory_bytes, bytes),
    cls: (r) => r.reserved_bytes && r.used_bytes > r.reserved_bytes ? "warn mark" : "",
    hint: "promised to replicas, of all; marked where they use more" },
  { label: "GPUs free", num: true, text: (r) => of(r.gpus_free, r.gpus) },
  { label: "tasks", num: true, hint: "running + pending",
    text: (r) => r.running === null && r.pending === null ? DASH : `${count(r.running)}+${count(r.pending)}`,
    cls: (r) => r.pending ? "warn mark" : "" },
  incidents, faults,
];

export const hostColumns = [
  { label: "host", head: true, text: (r) => r.id },
  { label: "group", text: (r) => text(r.group) },
  { label: "type", text: (r) => text(r.kind) },
  { label: "market", text: (r) => text(r.market) },
  { label: "zone", text: (r) => text(r.zone) },
  { label: "state", text: (r) => text(r.state) },
  { label: "up", num: true, text: (r) => lasts(r.uptime_s) },
  { label: "CPU left", num: true, text: (r) => of(r.cpus_free, r.cpus, short) },
  { label: "memory", num: true, text: (r) => of(r.used_bytes, r.memory_bytes, bytes) },
  { label: "reserved", num: true, text: (r) => of(r.reserved_bytes, r.memory_bytes, bytes) },
  { label: "GPUs free", num: true, text: (r) => of(r.gpus_free, r.gpus) },
  ...gpuColumns,
  { label: "tasks", num: true,
    text: (r) => r.running === null && r.pending === null ? DASH : `${count(r.running)}+${count(r.pending)}` },
  { label: "pressure", num: true, text: (r) => share(r.pressure),
    hint: "share of the last 10 s in which memory held somebody up" },
  { label: "CUDA", text: (r) => text(r.cuda) },
  { label: "driver", text: (r) => text(r.driver) },
  incidents, faults,
];

export const queueColumns = [
  { label: "queue", head: true, text: (r) => r.name },
  { label: "model", text: (r) => r.model, href: (r) => path.model(r.model) },
  { label: "waiting", num: true, text: (r) => count(r.visible) },
  { label: "in flight", num: true, text: (r) => count(r.in_flight) },
  { label: "dead letters", num: true, text: (r) => count(r.dead_letters),
    cls: (r) => r.dead_letters ? "bad mark" : "" },
  { label: "oldest", num: true, text: (r) => lasts(r.oldest_s) },
  { label: "drains in", num: true, text: (r) => lasts(r.drain_s),
    hint: "at the rate of the last minute" },
  { label: "of backlog", num: true, text: (r) => share(r.share) },
  incidents, faults,
];

export const diskColumns = [
  { label: "filesystem", head: true, text: (r) => r.id },
  { label: "mode", text: (r) => text(r.mode) },
  { label: "read/s", num: true, text: (r) => bytes(r.read_bytes_s) },
  { label: "metered/s", num: true, text: (r) => bytes(r.metered_bytes_s) },
  { label: "permitted/s", num: true, text: (r) => bytes(r.permitted_bytes_s) },
  { label: "used", num: true, text: (r) => share(r.used_share),
    cls: (r) => r.used_share > 0.75 ? "warn mark" : "" },
  { label: "operations", num: true, text: (r) => share(r.operations_share) },
  { label: "burst credit", num: true, text: (r) => bytes(r.burst_credit_bytes) },
  { label: "clients", num: true, text: (r) => count(r.clients) },
  incidents, faults,
];

export const unmetColumns = [
  { label: "model", head: true, text: (r) => r.model, href: (r) => path.model(r.model) },
  { label: "missing", num: true, text: (r) => count(r.missing), cls: () => "warn mark" },
  { label: "since", num: true, text: (r) => lasts(r.since_s) },
  { label: "why", text: (r) => text(r.reason), cls: () => "wider" },
  { label: "source", text: (r) => text(r.source) },
];

export const warningColumns = [
  { label: "what fills up", head: true, text: (r) => r.about, href: (r) => r.kind === "replica" ? path.replica(r.about) : "" },
  { label: "kind", text: (r) => r.kind },
  { label: "used", num: true, text: (r) => share(r.used_share), cls: () => "warn mark" },
  { label: "warning", text: (r) => r.text, cls: () => "wider" },
];

export const sourceColumns = [
  { label: "source", head: true, text: (r) => `${r.source} · ${r.part}` },
  { label: "age", num: true, text: (r) => lasts(r.age_s), cls: (r) => r.error ? "bad mark" : "" },
  { label: "failing for", num: true, text: (r) => lasts(r.failing_s) },
  { label: "calls", num: true, text: (r) => count(r.calls) },
  { label: "took", num: true, text: (r) => took(r.took_s) },
  { label: "what is wrong", text: (r) => text(r.error), cls: (r) => r.error ? "fault wide" : "faint" },
];

export const pastColumns = [
  { label: "incident", head: true, text: (r) => r.id, href: (r) => path.incident(r.id) },
  { label: "what", text: (r) => r.title || words(r.cause), cls: () => "wide" },
  { label: "class", text: (r) => text(r.class) },
  { label: "lasted", num: true, text: (r) => r.closed_at ? lasts(r.closed_at - r.opened_at) : DASH },
  { label: "done", text: (r) => text(r.action), cls: () => "wide" },
];
