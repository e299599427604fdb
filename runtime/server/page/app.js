// The page: a chat, and what the controller does meanwhile. Plain JavaScript, nothing from elsewhere.
"use strict";

const $ = (id) => document.getElementById(id);
const STOP_LEVELS = ["never stops early", "stops when unsure", "stops early", "stops very early"];
const state = { model: "", drafts: [], turns: [], abort: null, chosen: null };

// -- talking to the server ------------------------------------------------------------------------------------------

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function refusal(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ") || part === "data: [DONE]") continue;
      yield JSON.parse(part.slice(6));
    }
  }
}

async function look() {
  if (document.hidden || state.abort) return;
  try {
    const response = await fetch("/state", { headers: headers() });
    if (!response.ok) throw new Error(await refusal(response));
    const found = await response.json();
    state.model = found.model;
    state.drafts = found.drafts;
    $("served").textContent = `${found.model} · ${found.controller} decides · context ${found.context_tokens} tokens`;
    showMemory(found.memory);
    if ($("problem").dataset.of === "look") problem("");
  } catch (error) {
    $("served").textContent = "not connected";
    problem(`${error.message}`, "look");
  }
}

// -- one turn --------------------------------------------------------------------------------------------------------

function body() {
  const system = $("system").value.trim();
  const seed = $("seed").value;
  const tokens = Math.round(Number($("tokens").value));
  return {
    model: state.model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...state.turns],
    temperature: Number($("temperature").value),
    ...(tokens > 0 ? { max_tokens: tokens } : {}),
    ...(seed === "" ? {} : { seed: Math.round(Number(seed)) }),
    stream: true,
    stream_options: { include_usage: true },
    specpilot: { trace: true },
  };
}

async function ask(text) {
  state.turns.push({ role: "user", content: text });
  say("You", "user").textContent = text;
  const place = say("Model", "model");
  const answer = { text: "", tokens: 0, seconds: 0, plain: 0, drafted: 0, accepted: 0 };
  state.abort = new AbortController();
  busy(true);
  problem("");
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body()), signal: state.abort.signal,
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const part of events(response)) take(part, place, answer);
  } catch (error) {
    if (error.name !== "AbortError") problem(error.message, "ask");
  } finally {
    state.abort = null;
    busy(false);
    finish(place, answer);
  }
}

function take(part, place, answer) {
  if (part.error) throw new Error(part.error.message);
  const step = part.specpilot;
  if (step) {
    showTokens(place, step.tokens);
    answer.tokens += step.tokens.length;
    answer.seconds += step.seconds;
    answer.plain += step.plain_seconds;
    answer.drafted += step.drafted;
    answer.accepted += step.accepted;
    showDecision(step, answer);
    showSpeed(answer);
    showMemory(step.memory);
  }
  const text = part.choices.length ? part.choices[0].delta.content || "" : "";
  answer.text += text;
  if (text && !step) place.append(text);
  follow();
}

function finish(place, answer) {
  if (!answer.text) {
    state.turns.pop();
    place.parentElement.remove();
    return;
  }
  state.turns.push({ role: "assistant", content: answer.text });
  if (!answer.tokens) return;
  const note = document.createElement("div");
  note.className = "after";
  note.textContent = `${answer.tokens} tokens, ${speed(answer)}, ${answer.accepted} of ${answer.drafted} guesses accepted`;
  place.parentElement.append(note);
  $("status").textContent = `Answer complete. ${note.textContent}`;
  follow();
}

// -- showing ---------------------------------------------------------------------------------------------------------

function say(who, kind) {
  $("empty").hidden = true;
  const turn = document.createElement("div");
  const name = document.createElement("span");
  const said = document.createElement("div");
  turn.className = kind;
  name.className = "who";
  name.textContent = who;
  said.className = "said";
  turn.append(name, said);
  $("log").append(turn);
  follow(true);
  return said;
}

function follow(always) {
  const log = $("log");
  const scroller = log.scrollHeight > log.clientHeight + 1 ? log : document.scrollingElement;
  if (always || scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 160) {
    if (scroller === log) log.scrollTop = log.scrollHeight;
    else $("composer").scrollIntoView({ block: "end" });
  }
}

const hue = (draft) => `d${Math.max(0, state.drafts.indexOf(draft)) % 8}`;

function showTokens(place, tokens) {
  for (const token of tokens) {
    if (!token.text) continue;
    const span = document.createElement("span");
    span.className = `t ${token.origin} ${token.draft ? hue(token.draft) : ""}`;
    span.title = token.draft ? `${token.origin}, draft ${token.draft}` : token.origin;
    span.textContent = token.text;
    place.append(span);
  }
}

function showDecision(step, answer) {
  const { phase, draft, gamma, stop, prefetch, kv, victim } = step.decision;
  const said = [];
  if (phase === "admit") said.push(kv ? "reuse the stored prefix" : "read the whole prompt");
  else if (draft) said.push(`let ${draft} guess up to ${gamma} (${STOP_LEVELS[stop]})`);
  else said.push("decode plain");
  if (phase === "complete") said[0] = kv ? "keep the KV of this text" : "drop the KV of this text";
  if (prefetch) said.push(`load ${prefetch}, room from ${victim === "kv" ? "stored KV" : "drafts"} first`);
  state.chosen = draft;
  $("decision").textContent = `${said.join("; ")}.`;
  $("counts").textContent = answer.drafted ? `${answer.accepted} of ${answer.drafted} guesses accepted so far` : "";
}

const speed = (answer) => `${(answer.tokens / answer.seconds).toFixed(1)} tokens/s`;

function showSpeed(answer) {
  if (!answer.seconds || !answer.plain) return;
  const here = answer.tokens / answer.seconds;
  const plain = answer.tokens / answer.plain;
  $("rate").textContent = here.toFixed(1);
  $("times").textContent = `${(here / plain).toFixed(2)}× plain`;
  $("rate-bar").style.width = `${(100 * here) / Math.max(here, plain)}%`;
  $("plain-bar").style.width = `${(100 * plain) / Math.max(here, plain)}%`;
  $("brief").textContent = `${here.toFixed(1)} tokens/s, ${(here / plain).toFixed(2)}× plain · ${$("decision").textContent}`;
  $("brief").hidden = false;
  $("plain-note").textContent = `Plain decoding: ${plain.toFixed(1)} tokens/s, estimated from this device's profile.`;
}

const mb = (bytes) => `${Math.round(bytes / 1e6)} MB`;

function element(tag, name, text) {
  const made = document.createElement(tag);
  made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function showMemory(memory) {
  if (!memory || !memory.drafts) return;
  state.drafts = memory.drafts.map((draft) => draft.name);
  const strip = [];
  const part = (bytes, name, title) => {
    const piece = element("span", name);
    piece.style.width = `${(100 * bytes) / memory.budget_bytes}%`;
    piece.title = `${title}, ${mb(bytes)}`;
    strip.push(piece);
  };
  part(memory.workspace_bytes, "workspace", "workspace");
  for (const draft of memory.drafts) {
    if (draft.state === "resident" || draft.state === "loading") part(draft.bytes, `${hue(draft.name)} ${draft.state}`, draft.name);
  }
  part(memory.kv_bytes, "kv", "stored KV");
  $("budget").replaceChildren(...strip);
  const note = `${mb(memory.used_bytes)} of ${mb(memory.budget_bytes)} used; stored KV ${mb(memory.kv_bytes)}` +
    (memory.kv_disk_bytes ? `, on disk ${mb(memory.kv_disk_bytes)}` : "");
  $("budget-note").textContent = note;
  $("budget").setAttribute("aria-label", note);
  $("drafts").replaceChildren(...memory.drafts.map(draftRow));
  const rows = memory.kv.map(kvRow);
  $("kv").replaceChildren(...(rows.length ? rows : [element("li", "", "none yet")]));
}

function draftRow(draft) {
  const row = element("li", `${hue(draft.name)} ${draft.state}${draft.name === state.chosen ? " chosen" : ""}`);
  const percent = Math.round(100 * draft.fraction);
  const where = { resident: "in memory", loading: `loading ${percent}%`, stored: "on disk", failed: "cannot be used" };
  row.append(element("span", "dot"), element("span", "name", draft.name), element("span", "where", where[draft.state]));
  if (draft.state === "loading") {
    const bar = element("i", "");
    const done = element("b", "");
    done.style.width = `${percent}%`;
    bar.append(done);
    row.append(bar);
  }
  return row;
}

function kvRow(entry) {
  const row = element("li", "");
  const parts = element("span", "parts");
  const total = entry.memory + entry.loading + entry.disk;
  for (const name of ["memory", "loading", "disk"]) {
    const piece = element("span", name);
    piece.style.width = `${(100 * entry[name]) / total}%`;
    parts.append(piece);
  }
  const where = entry.loading ? "loading" : entry.disk ? (entry.memory ? "partly on disk" : "on disk") : "in memory";
  row.append(parts, element("span", "", `${total} tokens, ${where}`));
  return row;
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("log").setAttribute("aria-busy", String(on));
  if (on) $("status").textContent = "The model is answering.";
}

function problem(text, of) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
  $("problem").dataset.of = of || "";
}

// -- the user --------------------------------------------------------------------------------------------------------

function grow() {
  const field = $("prompt");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || state.abort || !state.model) return;
  $("prompt").value = "";
  grow();
  ask(text);
});
$("fields").addEventListener("submit", (event) => event.preventDefault());
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("stop").addEventListener("click", () => state.abort && state.abort.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.abort) state.abort.abort();
});
$("new").addEventListener("click", () => {
  if (state.abort) state.abort.abort();
  state.turns = [];
  for (const turn of [...$("log").children]) if (turn.id !== "empty") turn.remove();
  $("empty").hidden = false;
  problem("");
  $("prompt").focus();
});
$("coloured").addEventListener("change", () => $("log").classList.toggle("bare", !$("coloured").checked));
$("key").value = sessionStorage.getItem("key") || "";
$("key").addEventListener("change", () => {
  sessionStorage.setItem("key", $("key").value);
  look();
});
document.addEventListener("visibilitychange", look);
setInterval(look, 2000);
look();
