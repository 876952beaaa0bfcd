// Questions and orders to the operators' port.

const listeners = new Set();
const signedInListeners = new Set();
let csrf = null;

// required: reading needs a sign-in, too. Orders always do.
export const session = { required: false, signedIn: false, roles: [] };

export const mayOrder = () => session.roles.includes("operate");

export function onSignedOut(call) {
  listeners.add(call);
}

export function onSignedIn(call) {
  signedInListeners.add(call);
}

function signedOutListeners() {
  for (const call of listeners) call();
}

function signedOut() {
  session.signedIn = false;
  session.roles = [];
  signedOutListeners();
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
  if (response.status === 401 && !where.startsWith("/ui/session")) {
    if (session.required) signedOut();
    else await begin(); // the session is over; reading goes on
  }
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
  session.roles = answer.roles || [];
  return session.signedIn;
}

// By {token}, or by the {code} of a link that "holdfast sign-in" prints.
export async function signIn(secret) {
  const answer = await order("/ui/session", secret);
  csrf = answer.csrf;
  session.signedIn = true;
  session.roles = answer.roles || [];
  for (const call of signedInListeners) call();
}

export async function signOut() {
  await order("/ui/session", undefined, "DELETE");
  csrf = null;
  await begin();
  signedOutListeners();
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
