// Small helpers. Whatever comes from outside becomes text, never markup.

export const $ = (id) => document.getElementById(id);

export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") for (const [event, work] of Object.entries(value)) made.addEventListener(event, work);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Makes, updates and removes children so that there is one for each item, in their order; focus stays where it is.
export function keep(parent, items, key, make, update) {
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = there.get(name);
    if (child) there.delete(name);
    else {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === before) before = before.nextElementSibling;
    else parent.insertBefore(child, before);
    update(child, item);
  }
  for (const child of there.values()) child.remove();
}

// ---------------------------------------------------------------- time

let ahead = 0; // of this machine's clock, the host's, in seconds

export function setClock(now) {
  ahead = now - Date.now() / 1000;
}

export const now = () => Date.now() / 1000 + ahead;

export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// Elements that count by themselves: since a time, or until one.
export function since(element, at) {
  element.dataset.since = at ?? "";
  tick(element);
}

export function until(element, at) {
  element.dataset.until = at ?? "";
  tick(element);
}

function tick(element) {
  const { since: from, until: to } = element.dataset;
  if (from) say(element, span(now() - Number(from)));
  else if (to) say(element, Number(to) > now() ? `in ${span(Number(to) - now())}` : "now");
  else say(element, "");
}

setInterval(() => {
  if (!document.hidden) document.querySelectorAll("[data-since], [data-until]").forEach(tick);
}, 1000);

export const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });

// ---------------------------------------------------------------- the host

export class Over extends Error {} // the session has ended

export async function ask(path, options = {}) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  if (answer.status === 401) {
    location.reload(); // the login page says why
    throw new Over("The session has ended.");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.detail || `The host answered ${answer.status}.`);
  return found;
}

export const order = (path, body) =>
  ask(path, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      "X-Cornerman-CSRF": document.querySelector('meta[name="csrf"]').content,
    },
    body: JSON.stringify(body),
  });

export const eventItem = (one) =>
  h(
    "li",
    { "data-kind": one.kind },
    h("time", { datetime: new Date(one.at * 1000).toISOString() }, clock(one.at)),
    h("span", { class: "kind" }, one.kind),
    h("span", {}, one.text),
  );
