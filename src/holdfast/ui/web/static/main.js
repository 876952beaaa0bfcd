// The frame around the pages: addresses, signing in, keys, light and dark.

import { redrawAll } from "./charts.js";
import { dialog } from "./dialogs.js";
import { h, put } from "./dom.js";
import { incident } from "./incident.js";
import { live, standing, start, stop } from "./live.js";
import { model } from "./model.js";
import { overview } from "./overview.js";
import { plan } from "./plan.js";
import { replica } from "./replica.js";
import { begin, onSignedIn, onSignedOut, session, signIn, signOut } from "./server.js";
import { stream } from "./stream.js";

const main = document.getElementById("main");
const news = document.getElementById("news");
const lamp = document.getElementById("live");
let page = null;

// --- addresses -----------------------------------------------------------------------------------

const ROUTES = [
  [/^\/ui\/?$/, overview, "overview"],
  [/^\/ui\/replicas\/(.+)$/, replica, ""],
  [/^\/ui\/models\/(.+)$/, model, ""],
  [/^\/ui\/incidents\/([^/]+)$/, incident, ""],
  [/^\/ui\/stream$/, stream, "stream"],
  [/^\/ui\/plan$/, plan, "plan"],
];

function leave() {
  page?.close?.();
  page = null;
  main.replaceChildren();
}

function show() {
  leave();
  if (session.required && !session.signedIn) {
    login();
    return;
  }
  const where = location.pathname;
  const found = ROUTES.find(([pattern]) => pattern.test(where));
  for (const link of document.querySelectorAll("#head nav a")) {
    if (found && link.dataset.page === found[2]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!found) {
    main.append(h("h1", {}, "No such page"), h("p", {}, h("a", { href: "/ui/" }, "Overview")));
    document.title = "Holdfast";
    return;
  }
  const parameter = where.match(found[0])[1];
  page = found[1](main, parameter === undefined ? undefined : parameter.split("/").map(decodeURIComponent).join("/"));
  document.title = `${page.title} · Holdfast`;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const href = link.getAttribute("href");
  if (!href.startsWith("/ui/") || link.hasAttribute("download")) return;
  event.preventDefault();
  history.pushState(null, "", href);
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});

addEventListener("popstate", show);

// --- signing in ----------------------------------------------------------------------------------

function login() {
  document.title = "Sign in · Holdfast";
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, maxlength: "4096" });
  const problem = h("p", { class: "bad", role: "alert" });
  const form = h("form", { class: "login panel" }, h("h1", {}, "Sign in"),
    h("p", {}, "This fleet has an admin token."),
    h("label", { for: "token" }, "Admin token"), token, problem, h("button", { type: "submit", class: "main" }, "Sign in"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await signIn({ token: token.value });
    } catch (error) {
      problem.textContent = error.message;
      token.select();
      return;
    }
    enter();
  });
  main.append(form);
  token.focus();
}

const out = document.getElementById("signout");
out.addEventListener("click", () => signOut().catch((error) => put(lamp, error.message)));

onSignedIn(() => { out.hidden = false; });

onSignedOut(() => {
  out.hidden = true;
  if (session.required) stop();
  show();
});

async function enter() {
  out.hidden = !session.signedIn;
  await start();
  if (session.required && !session.signedIn) return; // it ended meanwhile, and was told
  show();
}

// --- what changed, said aloud --------------------------------------------------------------------

let titles = null; // of open incidents, by id
let first = true;
const states = new Map(); // of replicas
let waiting = [];

live.subscribe((view) => {
  const now = new Map(view.incidents.map((one) => [one.id, one.title]));
  for (const [id, title] of now) if (titles && !titles.has(id)) waiting.push(`Incident opened: ${title}.`);
  for (const [id, title] of titles || []) if (!now.has(id)) waiting.push(`Incident over: ${title}.`);
  titles = now;
  let moved = 0;
  for (const { id, state } of view.replicas) {
    const before = states.get(id);
    if (before === state) continue;
    states.set(id, state);
    if (first || before === undefined) continue;
    moved += 1;
    if (moved <= 3) waiting.push(`${id} is now ${state}.`);
  }
  if (moved > 3) waiting.push(`${moved - 3} more replicas changed.`);
  first = false;
  if (states.size > 2 * view.replicas.length + 100) states.clear(); // of many that came and went
});

setInterval(() => {
  const { text, bad } = standing();
  put(lamp, text);
  lamp.className = `live mark ${bad ? "bad" : text === "live" ? "good" : "warn"}`;
  if (waiting.length) {
    news.textContent = waiting.slice(0, 5).join(" ");
    waiting = [];
  }
}, 1000);

// --- light and dark ------------------------------------------------------------------------------

const button = document.getElementById("theme");
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (darkSystem.matches ? "dark" : "light")) === "dark";

function paint() {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  redrawAll();
}

const kept = localStorage.getItem("holdfast-theme");
if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
button.addEventListener("click", () => {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("holdfast-theme", next);
  paint();
});
darkSystem.addEventListener("change", paint);

let screenTheme;
addEventListener("beforeprint", () => {
  screenTheme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  redrawAll();
});
addEventListener("afterprint", () => {
  if (screenTheme) document.documentElement.dataset.theme = screenTheme;
  else delete document.documentElement.dataset.theme;
  redrawAll();
});

// --- keys ----------------------------------------------------------------------------------------

// Signs only: a letter would be pressed by whoever speaks to the browser.
const KEYS = [["/", "filter"], ["!", "only faults"], ["?", "these keys"], ["Esc", "empty and leave the filter"]];

function keys() {
  const box = dialog("Keys", h("dl", { class: "keys" }, KEYS.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))),
    h("button", { type: "button", onclick: () => box.close() }, "Close"));
}

document.getElementById("keys").addEventListener("click", keys);

document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest?.("input:not([type=checkbox]), select, textarea");
  if (typing) {
    if (event.key === "Escape" && typing.type === "search") {
      typing.value = "";
      typing.dispatchEvent(new Event("input"));
      typing.blur();
    }
    return;
  }
  const acts = {
    "/": () => page?.filter?.focus(),
    "!": () => page?.onlyFaults?.(),
    "?": keys,
  };
  if (acts[event.key]) {
    event.preventDefault();
    acts[event.key]();
  }
});

// --- begin ---------------------------------------------------------------------------------------

// The code of a sign-in link works once, and leaves the address before anybody copies it.
async function redeem() {
  const code = location.hash.startsWith("#sign-in=") ? location.hash.slice("#sign-in=".length) : "";
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  await signIn({ code }).catch((error) => put(lamp, error.message));
}

paint();
try {
  await begin();
  await redeem();
} catch (error) {
  main.replaceChildren(h("p", { class: "bad pad" }, error.message));
}
if (session.required && !session.signedIn) show();
else await enter();
