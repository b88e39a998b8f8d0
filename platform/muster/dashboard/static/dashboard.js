// Replaces the parts of the page that changed, with what the server sends. Without this script the page reloads itself.
"use strict";

const live = document.getElementById("live");
const connection = document.getElementById("connection");
const clockOffset = Number(live.dataset.now) * 1000 - Date.now(); // of the server's clock, in ms
let events = null;
let postponed = null; // content with a part that the user is using
let pressed = null; // where a button or a finger is down: without this element, its release is no click

function duration(seconds) {
  const left = Math.max(0, Math.round(seconds)), two = (number) => String(number).padStart(2, "0");
  if (left < 60) return `${left}s`;
  if (left < 3600) return `${Math.floor(left / 60)}m${two(left % 60)}s`;
  if (left < 86400) return `${Math.floor(left / 3600)}h${two(Math.floor((left % 3600) / 60))}m`;
  return `${Math.floor(left / 86400)}d${two(Math.floor((left % 86400) / 3600))}h`;
}

function updateTimes() {
  for (const time of live.querySelectorAll("time[data-form]")) {
    const past = (Date.now() + clockOffset - Date.parse(time.dateTime)) / 1000;
    const relative = past <= -1 ? `in ${duration(-past)}` : `${duration(past)} ago`;
    const text = time.dataset.form === "elapsed" ? duration(past) : relative;
    if (time.textContent !== text) time.textContent = text;
  }
}

function isBeingUsed(part) {
  const selection = document.getSelection();
  const selects = selection && !selection.isCollapsed && selection.containsNode(part, true);
  return selects || part.contains(pressed) || (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea"));
}

// What the user has opened, scrolled and focused in a part that is replaced.
function adopt(part, next) {
  const focusable = (root) => [...root.querySelectorAll("a, button, summary, [tabindex]")];
  const focused = focusable(part).indexOf(document.activeElement);
  const same = (one) => one.tagName === document.activeElement.tagName && one.getAttribute("href") === document.activeElement.getAttribute("href");
  const row = (one) => one.closest("tr")?.querySelector(".name")?.textContent; // rows may have the same links
  const here = focused < 0 ? undefined : row(document.activeElement);
  const alike = focused < 0 ? [] : focusable(next).filter(same);
  const target = focused < 0 ? null : alike.find((one) => row(one) === here) ?? alike[0] ?? focusable(next)[focused];
  part.querySelectorAll("details").forEach((one, index) => { const found = next.querySelectorAll("details")[index]; if (found) found.open = one.open; });
  const scrolled = [...part.querySelectorAll(".scroll, .log")].map((one) => [one.scrollLeft, one.scrollTop]);
  part.replaceWith(next);
  next.querySelectorAll(".scroll, .log").forEach((one, index) => { [one.scrollLeft, one.scrollTop] = scrolled[index] ?? [0, 0]; });
  target?.focus({ preventScroll: true });
}

function show(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const parts = [...live.children], next = [...template.content.children];
  const name = (one) => `${one.tagName}#${one.id}`;
  postponed = null;
  if (parts.map(name).join() === next.map(name).join()) {
    parts.forEach((part, index) => {
      if (part.isEqualNode(next[index])) return;
      if (isBeingUsed(part)) postponed = html;
      else adopt(part, next[index]);
    });
  } else {
    live.replaceChildren(...next);
  }
  updateTimes();
  if (live.querySelector("[data-reload]")) location.reload(); // another document has taken the place of this page
}

function connect() {
  if (events || document.hidden || !live.dataset.events) return;
  events = new EventSource(live.dataset.events);
  events.onopen = () => { connection.textContent = ""; };
  events.onmessage = (event) => show(JSON.parse(event.data));
  events.onerror = () => {
    const ended = events.readyState === EventSource.CLOSED;
    connection.textContent = ended ? "Not live: reload the page." : "Not live: connecting…";
  };
}

function disconnect() {
  events?.close();
  events = null;
}

// A browser has few connections to one server: only pages that are visible are kept current.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);
addEventListener("pointerdown", (event) => { pressed = event.target; });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(() => { pressed = null; }));
setInterval(() => (postponed ? show(postponed) : updateTimes()), 1000);
