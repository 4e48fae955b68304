// One engine: its picture, what it is and uses, its log, what happened to it, and what an administrator may do.

import { $, Over, ask, eventItem, h, keep, order, say, since } from "./dom.js";
import { bars, pause, picture } from "./wall.js";

const INSIDE_EVERY_MS = 3000;
const DO_AGAIN_MS = 5000;
const box = $("engine");
let shown = null; // the id of the engine in the box
let admin = false;
let opener = null;

export function setUp(isAdmin) {
  admin = isAdmin;
  $("e-close").addEventListener("click", () => box.close());
  box.addEventListener("close", closed);
  box.addEventListener("click", (event) => event.target === box && box.close()); // beside it
  addEventListener("hashchange", fromHash);
  fromHash();
}

function fromHash() {
  const id = location.hash.startsWith("#engine/") ? decodeURIComponent(location.hash.slice(8)) : null;
  if (id && id !== shown) begin(id);
  else if (!id && box.open) box.close();
}

export function open(id) {
  opener = document.activeElement;
  location.hash = `engine/${encodeURIComponent(id)}`;
}

function closed() {
  shown = null;
  pause(false);
  if (location.hash.startsWith("#engine/")) history.replaceState(null, "", location.pathname);
  opener?.focus();
}

function begin(id) {
  shown = id;
  pause(true);
  say($("e-title"), `Engine ${id}`);
  for (const part of ["e-facts", "e-do", "e-log", "e-past", "e-said"]) $(part).replaceChildren();
  bars($("e-bars"), null);
  $("e-picture").getContext("2d").clearRect(0, 0, $("e-picture").width, $("e-picture").height);
  $("e-picture").dataset.drawn = 0;
  $("e-picture").setAttribute("aria-label", "Picture");
  say($("e-nothing"), "");
  if (!box.open) box.showModal();
  refresh();
  watchPicture(id);
  watchInside(id);
}

// Called whenever the state has changed.
export async function refresh() {
  const id = shown;
  if (!id) return;
  try {
    const found = await ask(`/dashboard/engines/${encodeURIComponent(id)}`);
    if (shown === id) facts(found);
  } catch (fault) {
    if (!(fault instanceof Over) && shown === id) gone(fault.message);
  }
}

function gone(why) {
  say($("e-said"), why);
  $("e-do").replaceChildren();
}

function fact(name, value, state) {
  return { name, value, state };
}

function facts({ engine, holder, note, generation, draining, history }) {
  const lane = engine.lane;
  const list = [
    fact("State", engine.state + (draining ? ", goes with its lease" : ""), engine.state),
    fact("For", Date.parse(engine.since) / 1000),
    engine.reason ? fact("Why", engine.reason) : null,
    holder ? fact("Lease", `${holder}, rank ${engine.rank}, generation ${generation}`) : null,
    note ? fact("Note", note) : null,
    lane ? fact("Steps", `${lane.steps.toLocaleString()} in all, ${lane.steps_per_s.toFixed(1)} a second`) : null,
    lane?.steps ? fact("A step takes", `${((1000 * lane.engine_s) / lane.steps).toFixed(2)} ms in the engine, ${((1000 * lane.queue_s) / lane.steps).toFixed(2)} ms in the relay`) : null,
    fact("CPU", null),
    fact("Memory", null),
    fact("Pool", `${engine.pool}, port ${engine.port}`),
    fact("Image", engine.image),
  ].filter(Boolean);
  keep($("e-facts"), list, (one) => one.name, (one) => h("div", {}, h("dt", {}, one.name), h("dd")), (line, one) => {
    const place = line.lastChild;
    if (one.name === "For") since(place, one.value);
    else if (one.value !== null) say(place, one.value);
    if (one.state) place.dataset.state = one.state;
  });
  keep($("e-past"), history, (one) => one.seq, eventItem, () => {});
  if (admin) actions(engine);
}

function actions(engine) {
  const wanted = { ready: [["Retire", false]], starting: [["Retire", false]], leased: [["Replace now", true], ["Retire with its lease", false]] }[engine.state] ?? [];
  keep($("e-do"), wanted, ([name]) => name, ([name, atOnce]) => button(engine.id, name, atOnce), () => {});
}

function button(id, name, atOnce) {
  let timer = 0;
  const made = h("button", { class: atOnce ? "danger" : "" }, name);
  made.addEventListener("click", async () => {
    if (atOnce && !made.dataset.sure) {
      made.dataset.sure = "yes";
      say(made, "Really? Its game ends");
      timer = setTimeout(() => { delete made.dataset.sure; say(made, name); }, DO_AGAIN_MS);
      return;
    }
    clearTimeout(timer);
    made.disabled = true;
    try {
      await order(`/dashboard/engines/${encodeURIComponent(id)}/retire`, { now: atOnce });
      say($("e-said"), atOnce ? "It is being replaced." : "It is to go.");
    } catch (fault) {
      say($("e-said"), fault.message);
      made.disabled = false;
    }
    refresh();
  });
  return made;
}

async function watchPicture(id) {
  let mark = "";
  while (shown === id) {
    let wait = 3;
    if (!document.hidden) {
      try {
        const { pictures, wait_s, why } = await ask(`/dashboard/pictures?full&e=${encodeURIComponent(`${id}:${mark}`)}`);
        wait = wait_s;
        const found = pictures[id];
        if (shown !== id) return;
        if (found) {
          mark = found.mark;
          const game = found.game ? `${found.game} · ` : "";
          say($("e-title"), `${game}${id}`);
          bars($("e-bars"), found.health);
          $("e-picture").setAttribute("aria-label", found.game ? `Picture of ${found.game}` : "Picture");
          say($("e-nothing"), found.jpeg ? "" : `No picture: ${found.why}.`);
          if (found.jpeg) await picture($("e-picture"), found.jpeg);
        } else if (why || !mark) say($("e-nothing"), `No picture: ${why ?? "it serves no lease"}.`);
      } catch (fault) {
        if (fault instanceof Over) return;
      }
    }
    await new Promise((go) => setTimeout(go, 1000 * wait));
  }
}

async function watchInside(id) {
  while (shown === id) {
    if (!document.hidden) {
      try {
        const found = await ask(`/dashboard/engines/${encodeURIComponent(id)}/inside`);
        if (shown !== id) return;
        inside(found);
      } catch (fault) {
        if (fault instanceof Over) return;
      }
    }
    await new Promise((go) => setTimeout(go, INSIDE_EVERY_MS));
  }
}

function inside({ cpu_percent, memory_bytes, lines }) {
  const put = (name, text) => {
    const place = $("e-facts").querySelector(`[data-key="${name}"] dd`);
    if (place) say(place, text);
  };
  put("CPU", cpu_percent === null ? "not known" : `${cpu_percent.toFixed(0)} % of a core`);
  put("Memory", memory_bytes === null ? "not known" : `${(memory_bytes / 2 ** 20).toFixed(0)} MB`);
  const log = $("e-log");
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  say(log, lines === null ? "The log could not be read in time." : lines.join("\n") || "It has written nothing.");
  if (atEnd) log.scrollTop = log.scrollHeight;
}
