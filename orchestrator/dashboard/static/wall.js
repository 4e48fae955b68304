// The wall: one tile for each leased engine, with a picture while the tile can be seen and the page is looked at.

import { $, Over, ask, h, keep, say } from "./dom.js";

const FEW = 8; // tiles, and they are larger
const MOST = 48; // pictures in one question; more tiles than that take turns
const visible = new Set();
const marks = new Map();
const games = new Map();
let paused = false;
let wake = () => {};

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) visible.add(target.dataset.key);
    else visible.delete(target.dataset.key);
  }
  wake();
}, { rootMargin: "80px" });

export function pause(on) {
  paused = on;
  wake();
}

export const picture = async (canvas, base64) => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/jpeg" }));
  if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
    canvas.width = bitmap.width;
    canvas.height = bitmap.height;
  }
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
  canvas.dataset.drawn = Number(canvas.dataset.drawn ?? 0) + 1;
};

// Health as in the game: what is left reaches from the middle outwards.
export function bars(place, health) {
  const known = health?.some((share) => share !== null) ?? false;
  place.dataset.known = known;
  if (!known) return place.replaceChildren();
  if (!place.firstChild) {
    for (const side of ["P1", "P2"])
      place.append(h("span", { class: "health", role: "meter", "aria-label": `Health of ${side}`, "aria-valuemin": 0, "aria-valuemax": 100 }, h("i")));
  }
  health.forEach((share, at) => {
    const bar = place.children[at];
    bar.setAttribute("aria-valuenow", Math.round(100 * (share ?? 0)));
    bar.firstChild.style.width = `${100 * (share ?? 0)}%`;
    bar.dataset.low = (share ?? 1) < 0.25;
  });
}

export function wall(state, open) {
  const holders = new Map(state.leases.map((lease) => [lease.id, lease]));
  const leased = state.engines
    .filter((engine) => engine.state === "leased")
    .map((engine) => ({ ...engine, holder: holders.get(engine.lease)?.holder ?? "", order: holders.get(engine.lease)?.since ?? 0 }))
    .sort((a, b) => a.order - b.order || (a.lease < b.lease ? -1 : a.lease > b.lease ? 1 : a.rank - b.rank));
  say($("n-wall"), leased.length ? String(leased.length) : "");
  $("wall").dataset.few = leased.length <= FEW;
  $("no-wall").hidden = leased.length > 0;
  keep($("wall"), leased, (engine) => engine.id, (engine) => make(engine, open), update);
  const there = new Set(leased.map((engine) => engine.id));
  for (const known of [visible, marks, games]) for (const id of known.keys()) if (!there.has(id)) known.delete(id);
  wake();
}

function make(engine, open) {
  const tile = h(
    "li",
    {},
    h(
      "button",
      { class: "tile", on: { click: () => open(engine.id) } },
      h("canvas", { width: 160, height: 150, "aria-hidden": "true" }),
      h("span", { class: "none" }),
      h("span", { class: "bars", "aria-hidden": "true" }),
      h("span", { class: "game" }),
      h("span", { class: "rate" }),
      h("span", { class: "whose" }),
    ),
  );
  tile.dataset.key = engine.id;
  watcher.observe(tile);
  return tile;
}

function update(tile, engine) {
  const game = games.get(engine.id);
  const rate = engine.rate ? `${engine.rate.toFixed(engine.rate < 100 ? 1 : 0)}/s` : "";
  say(tile.querySelector(".game"), game ?? engine.pool);
  say(tile.querySelector(".rate"), rate);
  say(tile.querySelector(".whose"), `${engine.holder} · rank ${engine.rank}`);
  tile.dataset.draining = engine.draining;
}

const tileOf = (id) => $("wall").querySelector(`[data-key="${CSS.escape(id)}"]`);

function nothing(id, why) {
  const place = tileOf(id)?.querySelector(".none");
  if (!place) return;
  place.hidden = false;
  say(place, `No picture: ${why}.`);
}

async function show(id, found) {
  const tile = tileOf(id);
  if (!tile) return;
  marks.set(id, found.mark);
  if (found.game && games.get(id) !== found.game) {
    games.set(id, found.game);
    say(tile.querySelector(".game"), found.game);
  }
  bars(tile.querySelector(".bars"), found.health);
  tile.querySelector(".none").hidden = Boolean(found.jpeg);
  if (found.jpeg) await picture(tile.querySelector("canvas"), found.jpeg);
  else nothing(id, found.why);
}

export async function watch() {
  let turn = 0;
  for (;;) {
    if (paused || document.hidden || visible.size === 0) {
      await new Promise((go) => (wake = go));
      wake = () => {};
      continue;
    }
    const ids = [...visible];
    const some = ids.length <= MOST ? ids : Array.from({ length: MOST }, (_, at) => ids[(turn + at) % ids.length]);
    turn = (turn + MOST) % ids.length;
    let wait = 3;
    try {
      const query = some.map((id) => `e=${encodeURIComponent(`${id}:${marks.get(id) ?? ""}`)}`).join("&");
      const { pictures, wait_s, why } = await ask(`/dashboard/pictures?${query}${$("wall").dataset.few === "true" ? "&large" : ""}`);
      wait = wait_s;
      if (why) for (const id of some) nothing(id, why);
      await Promise.all(Object.entries(pictures).map(([id, found]) => show(id, found).catch(() => {})));
    } catch (fault) {
      if (fault instanceof Over) return;
    }
    await new Promise((go) => setTimeout(go, 1000 * wait));
  }
}

document.addEventListener("visibilitychange", () => wake());
