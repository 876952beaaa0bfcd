// The picture as it changes: one stream for the whole page, whoever draws it.

import { get, session } from "./server.js";

const POLL_MS = 5000; // where the stream cannot be had, e.g. too many listen already
const OLD_MS = 5000; // ages alone are no news: a stream that is silent so long is asked anew

export const live = {
  view: null,
  at: 0, // when something was last heard
  problem: "",
  costs: [], // of the latest updates, in milliseconds
  subscribers: new Set(),
  subscribe(call) {
    this.subscribers.add(call);
    if (this.view) call(this.view);
    return () => this.subscribers.delete(call);
  },
};

let source = null;
let poll = null;

// The picture as the stream told it, which its changes build upon; what is asked for in between may
// be a little newer, and is only shown.
let kept = null;

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && source && !kept) start();
});

function took(text, whole) {
  if (document.hidden) { // nobody looks, and nothing is done; then it begins anew
    kept = null;
    live.at = Date.now();
    return;
  }
  const began = performance.now();
  const told = JSON.parse(text);
  if (whole) kept = told;
  else if (kept?.version === told.since) changed(kept, told);
  else {
    start();
    return;
  }
  show(kept);
  const ms = performance.now() - began;
  live.costs.push(ms);
  if (live.costs.length > 200) live.costs.shift();
  document.dispatchEvent(new CustomEvent("holdfast:updated", { detail: { ms } }));
}

// In place: a copy of each row would cost more than all the rest.
function changed(view, { head, rows, whole }) {
  Object.assign(view, head, whole);
  for (const [table, places] of Object.entries(rows)) {
    for (const [place, fields] of Object.entries(places)) Object.assign(view[table][place], fields);
  }
}

function show(view) {
  live.at = Date.now();
  live.problem = "";
  live.view = view;
  for (const call of live.subscribers) call(view);
}

async function ask() {
  try {
    show(await get("/view"));
  } catch (error) {
    live.problem = error.message;
  }
}

export async function start() {
  stop();
  await ask();
  if (live.problem && !session.signedIn) return;
  source = new EventSource("/view/stream?only=changes");
  source.addEventListener("view", (event) => took(event.data, true));
  source.addEventListener("changes", (event) => took(event.data, false));
  source.addEventListener("open", () => { live.problem = ""; });
  source.addEventListener("error", () => { live.problem = "the connection is lost; trying again"; });
  poll = setInterval(() => {
    const heard = source.readyState === EventSource.OPEN && Date.now() - live.at < OLD_MS;
    if (!heard && !document.hidden) ask();
  }, POLL_MS);
}

export function stop() {
  source?.close();
  clearInterval(poll);
  source = kept = null;
}

export function standing() {
  if (!live.view) return { text: live.problem || "connecting …", bad: Boolean(live.problem) };
  const age = Math.max(0, Math.round((Date.now() - live.at) / 1000));
  if (live.problem) return { text: `not live for ${age} s: ${live.problem}`, bad: true };
  if (source?.readyState === EventSource.OPEN) return { text: "live", bad: false };
  return { text: `asked ${age} s ago`, bad: age > 30 };
}
