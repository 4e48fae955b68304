// Four charts of the last hour, drawn by uPlot.

import { $, clock, h, now, say } from "./dom.js";

const HOUR_S = 3600;
const LEAST_S = 600; // so much is shown even when there is less to show
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const CHARTS = [
  { title: "Leases", series: [["leases", "active", "leased"], ["waiting", "waiting", "starting"]], digits: 0 },
  { title: "Engines", series: [["leased", "leased", "leased"], ["ready", "ready", "ready"], ["starting", "starting", "starting"], ["failed", "failed", "failed"]], digits: 0 },
  { title: "Steps a second", series: [["rate", "all leases", "leased"]], digits: 0 },
  { title: "Step time", series: [["step_ms", "engine and relay", "leased"]], digits: 2, unit: " ms" },
];

const data = { at: [] };
const drawn = [];
let current = {}; // what is newer than the last sample
const dark = matchMedia("(prefers-color-scheme: dark)");

// A canvas does not know light-dark(): let an element work the colour out.
const probe = document.body.appendChild(h("span", { hidden: true }));
function colour(name, alpha = 1) {
  probe.style.color = `var(--${name})`;
  const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g);
  return `rgb(${r} ${g} ${b} / ${alpha})`;
}

const written = (value, chart) => (value === null || value === undefined ? "–" : value.toFixed(chart.digits) + (chart.unit ?? ""));

export function add({ columns, samples }) {
  for (const sample of samples) {
    if (data.at.length && sample[0] <= data.at.at(-1)) continue;
    columns.forEach((name, at) => (data[name] ??= []).push(sample[at]));
  }
  const from = now() - HOUR_S;
  while (data.at.length && data.at[0] < from) for (const column of Object.values(data)) column.shift();
  for (const one of drawn) refresh(one);
}

export function live(state, admin) {
  const sum = (count) => state.pools.reduce((total, pool) => total + (count(pool) ?? 0), 0);
  current = { leases: sum((pool) => pool.active_leases), waiting: sum((pool) => pool.pending_leases) };
  for (const name of ["leased", "ready", "starting", "failed"]) current[name] = sum((pool) => pool.counts[name]);
  if (admin) current.rate = state.leases.reduce((total, lease) => total + lease.rate, 0);
  for (const one of drawn) keys(one);
}

export function charts(history) {
  for (const chart of CHARTS) {
    const keys = chart.series.map(([, label, state]) => h("span", { class: "key", "data-state": state }, h("b"), ` ${label}`));
    const place = h("div", { class: "plot", role: "img" });
    const when = h("span", { class: "when quiet" });
    const figure = h("figure", { class: "card" }, h("figcaption", {}, h("h3", {}, chart.title), when, h("p", {}, ...keys)), place);
    $("charts").append(figure);
    drawn.push({ chart, keys, place, when, plot: null });
  }
  add(history);
  for (const one of drawn) draw(one);
  dark.addEventListener("change", () => drawn.forEach(draw));
  const sizes = new ResizeObserver(() => drawn.forEach(({ plot, place }) => plot?.setSize({ width: place.clientWidth, height: place.clientHeight })));
  for (const { place } of drawn) sizes.observe(place);
}

function shownTime() {
  const end = Math.max(now(), data.at.at(-1) ?? 0);
  return [Math.max(end - HOUR_S, Math.min(data.at[0] ?? end, end - LEAST_S)), end];
}

function columns({ chart }) {
  return [data.at, ...chart.series.map(([name]) => data[name] ?? [])];
}

function draw(one) {
  const { chart, place } = one;
  one.plot?.destroy();
  const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  one.plot = new uPlot(
    {
      width: place.clientWidth,
      height: place.clientHeight,
      padding: [8, 16, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: true, range: shownTime }, y: { range: (_, __, most) => [0, Math.max(most * 1.1, chart.digits ? 0.1 : 1)] } },
      axes: [
        { ...axis, space: 64, size: 22, values: (_, at) => at.map((x) => clock(x).slice(0, 5)) },
        { ...axis, space: 26, size: 36, ...(chart.digits ? {} : { incrs: WHOLE }), values: (_, found) => found.map((y) => String(+y.toFixed(2))) },
      ],
      series: [{}, ...chart.series.map(([, label, state], at) => ({ label, stroke: colour(state), width: 2, points: { show: false }, fill: at === 0 ? colour(state, 0.12) : undefined }))],
      hooks: { setCursor: [() => keys(one)] },
    },
    columns(one),
    place,
  );
  keys(one);
}

function refresh(one) {
  one.plot?.setData(columns(one));
  keys(one);
}

// The numbers beside the title: those under the pointer, else how things are now.
function keys(one) {
  const { chart } = one;
  const pointed = one.plot?.cursor?.idx ?? null;
  const value = (name) => (pointed === null ? (current[name] ?? data[name]?.at(-1)) : data[name]?.[pointed]);
  say(one.when, pointed === null ? "" : clock(data.at[pointed]));
  chart.series.forEach(([name], number) => {
    say(one.keys[number].firstChild, written(value(name), chart));
    one.keys[number].dataset.none = !value(name);
  });
  const told = chart.series.map(([name, label]) => {
    const latest = current[name] ?? data[name]?.at(-1);
    const known = [...(data[name] ?? []), latest].filter((sample) => typeof sample === "number");
    return `${label}: now ${written(latest, chart)}, at most ${written(known.length ? Math.max(...known) : null, chart)}`;
  });
  one.place.setAttribute("aria-label", `${chart.title} in the last hour. ${told.join("; ")}.`);
}
