// The live stream, while somebody looks; when the host has no room for one, a look every few seconds instead.

import { $, ask, say } from "./dom.js";

const AGAIN_MS = 5000;
const WORDS = { live: "Live", poll: "Every 5 s", wait: "Connecting", lost: "No connection, trying again" };

export function follow({ onState, onSamples }) {
  let source = null;
  let again = 0;

  function show(how) {
    $("link").dataset.link = how;
    say($("link"), WORDS[how]);
  }

  function stop() {
    clearTimeout(again);
    source?.close();
    source = null;
  }

  function start() {
    stop();
    source = new EventSource("/dashboard/stream");
    source.addEventListener("open", () => show("live"));
    source.addEventListener("state", (event) => onState(JSON.parse(event.data)));
    source.addEventListener("samples", (event) => onSamples(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) look(); // refused: no room, or the session has ended
      else show("lost");
    });
  }

  async function look() {
    stop();
    try {
      onState(await ask("/dashboard/state"));
      show("poll");
    } catch {
      show("lost");
    }
    again = setTimeout(start, AGAIN_MS);
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  if (!document.hidden) start();
}
