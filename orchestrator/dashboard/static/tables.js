// Pools, leases, all engines, events and what is wrong.

import { $, clock, eventItem, h, keep, say, since, until } from "./dom.js";

const STATES = ["ready", "leased", "starting", "failed", "retiring"];

const cell = (name, label, properties = {}) => h("td", { role: "cell", "data-is": name, "data-label": label, ...properties });
const row = (...cells) => h("tr", { role: "row" }, ...cells);
const part = (line, name) => line.querySelector(`[data-is="${name}"]`);

export function faults(state) {
  const found = [];
  if (state.host.silent) found.push("The daemon's pool process gives no sign of life: nothing starts and nothing heals. Look at its log.");
  if (state.host.fault) found.push(state.host.fault);
  for (const pool of state.pools) if (pool.fault && pool.fault !== state.host.fault) found.push(`Pool ${pool.name}: ${pool.fault}`);
  if (state.host.stops_at) found.push(`Nobody uses this host: it stops at ${clock(state.host.stops_at)} unless somebody leases.`);
  keep($("faults"), found, (text) => text, (text) => h("p", { class: "fault" }, text), () => {});
}

export function pools(found) {
  const make = () =>
    row(
      h("th", { role: "rowheader", scope: "row", "data-is": "name" }),
      cell("bar", "Engines"),
      ...["ready", "leased", "starting", "failed"].map((name) => cell(name, name, { class: "n" })),
      cell("wanted", "wanted", { class: "n" }),
      cell("most", "at most", { class: "n" }),
    );
  keep($("pools").tBodies[0], found, (pool) => pool.name, make, (line, pool) => {
    say(part(line, "name"), pool.name + (pool.paused ? " (paused)" : ""));
    part(line, "name").title = `${pool.runtime}, ${pool.image}`;
    bar(part(line, "bar"), pool);
    for (const name of ["ready", "leased", "starting", "failed"]) {
      const place = part(line, name);
      say(place, String(pool.counts[name] ?? 0));
      place.dataset.state = pool.counts[name] ? name : "";
    }
    say(part(line, "wanted"), String(pool.wanted));
    say(part(line, "most"), String(pool.max_engines));
  });
}

function bar(place, pool) {
  const total = Math.max(pool.max_engines, 1);
  if (!place.firstChild) place.append(h("span", { class: "bar", role: "img" }, ...STATES.map((name) => h("i", { "data-state": name }))));
  const said = STATES.filter((name) => pool.counts[name]).map((name) => `${pool.counts[name]} ${name}`);
  place.firstChild.setAttribute("aria-label", `${said.join(", ") || "none"} of at most ${total}`);
  place.firstChild.title = said.join(", ");
  STATES.forEach((name, at) => (place.firstChild.children[at].style.width = `${(100 * (pool.counts[name] ?? 0)) / total}%`));
}

export function leases(found, admin) {
  say($("n-leases"), found.length ? String(found.length) : "");
  $("no-leases").hidden = found.length > 0;
  $("leases").hidden = found.length === 0;
  const make = () =>
    row(
      h("th", { role: "rowheader", scope: "row", "data-is": "holder" }),
      cell("envs", "engines"),
      cell("pool", "pool"),
      cell("since", "held for"),
      cell("until", "ends unless renewed"),
      cell("rate", "steps/s", { class: "n" }),
      cell("note", "note"),
    );
  keep($("leases").tBodies[0], found, (lease) => lease.id, make, (line, lease) => {
    const waits = lease.state === "pending";
    line.dataset.state = lease.state;
    say(part(line, "holder"), lease.holder);
    part(line, "holder").title = lease.id;
    say(part(line, "envs"), waits ? `${lease.envs}, place ${lease.place} in the queue` : String(lease.envs));
    say(part(line, "pool"), lease.pool);
    since(part(line, "since"), lease.since);
    until(part(line, "until"), lease.idle_end ?? lease.expires);
    part(line, "until").dataset.soon = lease.idle_end ? "idle" : "";
    part(line, "until").title = lease.idle_end ? "None of its engines was used for long: it ends then unless one is." : "";
    say(part(line, "rate"), lease.rate ? lease.rate.toFixed(lease.rate < 100 ? 1 : 0) : waits ? "" : "0");
    const labels = Object.entries(lease.labels).map(([name, value]) => `${name}=${value}`);
    say(part(line, "note"), [lease.note, ...labels].filter(Boolean).join(" · "));
  });
  $("leases").dataset.admin = admin;
}

export function engines(found, open) {
  say($("n-all"), String(found.length));
  if (!$("all").open) return;
  const make = (engine) =>
    row(
      h("th", { role: "rowheader", scope: "row" }, h("button", { class: "plain", on: { click: () => open(engine.id) } }, engine.id)),
      cell("pool", "pool"),
      cell("state", "state"),
      cell("since", "for"),
      cell("why", "why"),
    );
  keep($("engines").tBodies[0], found, (engine) => engine.id, make, (line, engine) => {
    say(part(line, "pool"), engine.pool);
    say(part(line, "state"), engine.state + (engine.draining ? ", goes with its lease" : ""));
    part(line, "state").dataset.state = engine.state;
    since(part(line, "since"), engine.since);
    say(part(line, "why"), engine.reason ?? "");
  });
}

export function events(found) {
  keep($("events"), found, (one) => one.seq, eventItem, () => {});
}
