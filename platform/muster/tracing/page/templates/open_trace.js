// Hands a trace to Perfetto: window.open, "PING" until it answers "PONG", then the bytes by postMessage.
"use strict";
const PERFETTO = document.body.dataset.perfetto;
const ORIGIN = new URL(PERFETTO).origin;
const ANSWER_TIMEOUT_MS = 60000;

function answered(target) {
  return new Promise((resolve, reject) => {
    const started = Date.now();
    const finish = (settle, value) => {
      clearInterval(timer);
      removeEventListener("message", receive);
      settle(value);
    };
    const receive = (event) => {
      if (event.source === target && event.origin === ORIGIN && event.data === "PONG") finish(resolve);
    };
    const timer = setInterval(() => {
      if (target.closed) finish(reject, new Error("The window of Perfetto was closed."));
      else if (Date.now() - started > ANSWER_TIMEOUT_MS) finish(reject, new Error(`${PERFETTO} does not answer.`));
      else target.postMessage("PING", ORIGIN);
    }, 100);
    addEventListener("message", receive);
  });
}

async function bytesOf(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(await response.text());
  return response.arrayBuffer();
}

async function openTrace(button) {
  const status = button.nextElementSibling;
  const target = window.open(PERFETTO);
  if (!target) {
    status.textContent = "The browser blocked the new window: allow pop-ups for this page.";
    return;
  }
  button.disabled = true;
  status.textContent = "opening…";
  try {
    const [buffer] = await Promise.all([bytesOf(button.dataset.trace), answered(target)]);
    const { title, file: fileName } = button.dataset;
    target.postMessage({ perfetto: { buffer, title, fileName } }, ORIGIN, [buffer]);
    status.textContent = "opened";
  } catch (error) {
    status.textContent = error.message;
  }
  button.disabled = false;
}

for (const button of document.querySelectorAll("button[data-trace]")) {
  button.addEventListener("click", () => openTrace(button));
}
