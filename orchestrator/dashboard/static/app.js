// Begins with what the page was given, then follows the live stream.

import { add, charts, live } from "./charts.js";
import { $, say, setClock } from "./dom.js";
import { open, refresh, setUp } from "./engine.js";
import { follow } from "./live.js";
import { engines, events, faults, leases, pools } from "./tables.js";
import { wall, watch } from "./wall.js";

const given = JSON.parse($("given").textContent);
let latest = given.state;

function show(state) {
  latest = state;
  say($("host"), state.host.name);
  say($("version"), `Cornerman ${state.host.version}`);
  faults(state);
  live(state, given.me.admin);
  wall(state, open);
  leases(state.leases, given.me.admin);
  pools(state.pools);
  engines(state.engines, open);
  events(state.events);
}

setClock(given.now);
show(given.state);
charts(given.history);
setUp(given.me.admin);
$("all").addEventListener("toggle", () => engines(latest.engines, open));
follow({
  onState: (state) => {
    show(state);
    refresh();
  },
  onSamples: add,
});
watch();
