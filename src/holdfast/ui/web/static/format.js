// Figures for people. What is not known is a dash, never a zero.

export const DASH = "–";

const none = (v) => v === null || v === undefined || v === "" || Number.isNaN(v);

export function count(v) {
  return none(v) ? DASH : v >= 10000 ? short(v) : String(Math.round(v));
}

export function short(v) {
  if (none(v)) return DASH;
  const size = Math.abs(v);
  if (size >= 1e9) return digits(v / 1e9) + "G";
  if (size >= 1e6) return digits(v / 1e6) + "M";
  if (size >= 1e4) return digits(v / 1e3) + "k";
  return digits(v);
}

function digits(v) {
  const size = Math.abs(v);
  if (size === 0) return "0";
  if (size >= 100) return String(Math.round(v));
  if (size >= 10) return String(Math.round(v * 10) / 10);
  return String(Math.round(v * 100) / 100);
}

// How long something takes: 214 ms, 1.20 s, 75 s.
export function took(v) {
  if (none(v)) return DASH;
  if (v < 0.001) return v === 0 ? "0 ms" : "<1 ms";
  if (v < 1) return Math.round(v * 1000) + " ms";
  if (v < 10) return v.toFixed(2) + " s";
  return lasts(v);
}

// How long something lasts: 52 s, 9 min, 3 h 40 min, 9 d.
export function lasts(v) {
  if (none(v)) return DASH;
  if (v < 120) return Math.round(v) + " s";
  if (v < 7200) return Math.round(v / 60) + " min";
  if (v < 172800) {
    const minutes = Math.round((v % 3600) / 60);
    const hours = Math.floor(v / 3600);
    return minutes && minutes < 60 ? `${hours} h ${minutes} min` : `${hours + (minutes === 60)} h`;
  }
  return Math.round(v / 86400) + " d";
}

export function bytes(v) {
  if (none(v)) return DASH;
  const units = ["", "K", "M", "G", "T"];
  let place = 0;
  while (Math.abs(v) >= 1024 && place < units.length - 1) {
    v /= 1024;
    place += 1;
  }
  return digits(Math.abs(v) >= 10 ? Math.round(v) : v) + units[place];
}

export function share(v) {
  if (none(v)) return DASH;
  const p = v * 100;
  if (p === 0 || p >= 10) return Math.round(p) + " %";
  return (p < 0.01 ? "<0.01" : p < 1 ? p.toFixed(2) : p.toFixed(1)) + " %";
}

// Nines count: cut, not rounded, so that 0.99999 never looks like always.
export function nines(v) {
  if (none(v)) return DASH;
  if (v >= 1) return "100 %";
  const text = (Math.floor(v * 1e8) / 1e6).toFixed(6).replace(/0+$/, "");
  return (text.endsWith(".") ? text.slice(0, -1) : text) + " %";
}

export function of(a, b, how = count) {
  return none(a) && none(b) ? DASH : `${how(a)}/${how(b)}`;
}

export function clock(at, seconds = true) {
  if (none(at)) return DASH;
  const when = new Date(at * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const day = when.toDateString() === new Date().toDateString()
    ? "" : `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} `;
  const time = `${two(when.getHours())}:${two(when.getMinutes())}`;
  return day + time + (seconds ? `:${two(when.getSeconds())}` : "");
}

export function ago(at) {
  return none(at) ? DASH : lasts(Math.max(0, Date.now() / 1000 - at)) + " ago";
}

export const words = (name) => none(name) ? DASH : String(name).replaceAll("_", " ");

export const text = (v) => none(v) ? DASH : String(v);
