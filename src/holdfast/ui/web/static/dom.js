// Elements from a line of code. Text is always text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

export const path = {
  replica: (id) => "/ui/replicas/" + id.split("/").map(encodeURIComponent).join("/"),
  model: (name) => "/ui/models/" + name.split("/").map(encodeURIComponent).join("/"),
  incident: (id) => "/ui/incidents/" + encodeURIComponent(id),
};

export const api = {
  replica: (id, what) => `/replicas/${encodeURIComponent(id)}/${what}`,
  model: (name, what) => `/models/${encodeURIComponent(name)}/${what}`,
  incident: (id, what = "") => `/incidents/${encodeURIComponent(id)}${what}`,
};

export const state = (name) => h("span", { class: stateClass(name) }, name || "–");

const KNOWN = new Set(["starting", "loading", "warming", "ready", "suspect", "quarantined",
  "draining", "stopped", "dead", "pending", "running", "stopping"]);

export const stateClass = (name) => "state s-" + (KNOWN.has(name) ? name : "unknown");

let numbered = 0;
export const newId = (what) => `${what}-${numbered += 1}`;

// A part of a page with its heading; wide tables scroll inside it, the page never does.
export function panel(title, attributes, ...children) {
  const id = newId("h");
  return h("section", { ...attributes, class: `panel ${attributes?.class || ""}`,
    "aria-labelledby": id }, h("h2", { id }, title), ...children);
}

export function scroller(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    ...children);
}

// Set text only where it differs: each write that changes nothing still costs a layout, and a new
// node costs more than new text in the old one.
export function put(element, text) {
  const only = element.firstChild;
  if (only?.nodeType === Node.TEXT_NODE && !only.nextSibling) {
    if (only.data !== text) only.data = text;
  } else if (element.textContent !== text) element.textContent = text;
}
