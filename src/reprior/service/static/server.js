// Asking the server, and listening to it. Addresses are relative, so the page works below any path.
import { $, write } from "./util.js";

let token = sessionStorage.getItem("reprior-token");
const headers = () => (token ? { Authorization: "Bearer " + token } : {});

function askToken() {
  const dialog = $("ask");
  $("ask-error").hidden = !token;
  if (!dialog.open) { $("token").value = ""; dialog.showModal(); }
  return new Promise((done) => dialog.addEventListener("close", () => {
    token = $("token").value; sessionStorage.setItem("reprior-token", token); done();
  }, { once: true }));
}

export async function ask(path, options = {}) {
  for (;;) {
    const answer = await fetch(path, { ...options, headers: { ...headers(), ...(options.headers || {}) } });
    if (answer.status === 401) { await askToken(); continue; }
    const body = await answer.json();
    if (!answer.ok) throw Object.assign(new Error(body.error), { status: answer.status });
    return body;
  }
}

export const post = (path, body) =>
  ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });

export const at = (stream, rest = "") => `streams/${encodeURIComponent(stream)}${rest}`;

export function connected(yes, trouble) {
  const text = !yes ? "The server does not answer. Trying again." : trouble ? "No samples are stored: " + trouble : "";
  $("trouble").hidden = !text;
  write($("trouble"), text);
}

// Server-sent events over fetch, because EventSource cannot carry a token. A browser opens six connections to a server
// for all its tabs together: a page holds one of them, and none while nobody can see it.
let listening = null;

export function stopListening() {
  if (listening) listening.abort();
  listening = null;
}

export function listen(name, heard) {
  stopListening();
  if (document.hidden) return;
  const control = listening = new AbortController();
  (async () => {
    while (!control.signal.aborted) {
      try {
        const answer = await fetch("events" + (name ? "?stream=" + encodeURIComponent(name) : ""), { headers: headers(), signal: control.signal });
        if (answer.status === 401) { await askToken(); continue; }
        if (answer.status === 404) return heard.deleted();
        if (answer.ok) await read(answer.body, (kind, data) => { if (!control.signal.aborted && heard[kind]) heard[kind](data); });
      } catch { if (control.signal.aborted) return; }
      connected(false);
      await new Promise((done) => setTimeout(done, 2000));
    }
  })();
}

async function read(body, tell) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const kind = /^event: (.*)$/m.exec(part), data = /^data: (.*)$/m.exec(part);
      if (kind && data) tell(kind[1], JSON.parse(data[1]));
    }
  }
}
