// Questions and orders to the operators' port.

const listeners = new Set();
let csrf = null;

export const session = { required: false, signedIn: false };

export function onSignedOut(call) {
  listeners.add(call);
}

function signedOut() {
  session.signedIn = false;
  for (const call of listeners) call();
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function asked(where, options) {
  let response;
  try {
    response = await fetch(where, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    throw new Refused(0, `control does not answer (${error.message})`);
  }
  if (response.status === 401 && !where.startsWith("/ui/session")) signedOut();
  return response;
}

async function told(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, body.error || `HTTP ${response.status}`);
  return body;
}

export const get = async (where) => told(await asked(where));

export async function getText(where) {
  const response = await asked(where);
  if (!response.ok) return told(response);
  return response.text();
}

export async function order(where, body, method = "POST") {
  const headers = { "x-holdfast-csrf": csrf || "" };
  const options = { method, headers };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  return told(await asked(where, options));
}

export async function begin() {
  const answer = await get("/ui/session");
  csrf = answer.csrf;
  session.required = answer.required;
  session.signedIn = answer.signed_in;
  return session.signedIn;
}

export async function signIn(token) {
  const answer = await order("/ui/session", { token });
  csrf = answer.csrf;
  session.signedIn = true;
}

export async function signOut() {
  await order("/ui/session", undefined, "DELETE");
  csrf = null;
  signedOut();
}

// {"scope/id/metric": [[t, value], …]} of all series below a prefix.
export async function history(prefix, since, points = 240, until = null) {
  const query = new URLSearchParams({ series: prefix, match: "prefix", points: String(points),
    since: String(Math.floor(since)) });
  if (until !== null) query.set("until", String(Math.ceil(until)));
  return (await get(`/history?${query}`)).series || {};
}

// The same for series whose names are known; one that nobody records is left out.
export async function historyOf(names, since, points = 240) {
  if (names.length === 0) return {};
  const query = new URLSearchParams({ points: String(points), since: String(Math.floor(since)) });
  for (const name of names) query.append("series", name);
  return (await get(`/history?${query}`)).series || {};
}
