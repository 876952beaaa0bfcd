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

let unseen = null; // what came while nobody looked at the page

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && unseen !== null) took(unseen);
});

function took(text) {
  unseen = document.hidden ? text : null;
  if (document.hidden) {
    live.at = Date.now();
    return;
  }
  const began = performance.now();
  const view = JSON.parse(text);
  show(view);
  const ms = performance.now() - began;
  live.costs.push(ms);
  if (live.costs.length > 200) live.costs.shift();
  document.dispatchEvent(new CustomEvent("holdfast:updated", { detail: { ms } }));
}

function show(view) {
  live.at = Date.now();
  live.problem = "";
  live.view = view;
  for (const call of live.subscribers) call(view);
}

export async function start() {
  stop();
  try {
    show(await get("/view"));
  } catch (error) {
    live.problem = error.message;
    if (!session.signedIn) return;
  }
  source = new EventSource("/view/stream");
  source.addEventListener("view", (event) => took(event.data));
  source.addEventListener("open", () => { live.problem = ""; });
  source.addEventListener("error", () => { live.problem = "the connection is lost; trying again"; });
  poll = setInterval(async () => {
    const heard = source.readyState === EventSource.OPEN && Date.now() - live.at < OLD_MS;
    if (heard || document.hidden) return;
    try {
      show(await get("/view"));
    } catch (error) {
      live.problem = error.message;
    }
  }, POLL_MS);
}

export function stop() {
  source?.close();
  clearInterval(poll);
  source = null;
}

export function standing() {
  if (!live.view) return { text: live.problem || "connecting …", bad: Boolean(live.problem) };
  const age = Math.max(0, Math.round((Date.now() - live.at) / 1000));
  if (live.problem) return { text: `not live for ${age} s: ${live.problem}`, bad: true };
  if (source?.readyState === EventSource.OPEN) return { text: "live", bad: false };
  return { text: `asked ${age} s ago`, bad: age > 30 };
}
