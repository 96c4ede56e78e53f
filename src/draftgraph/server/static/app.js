// Puts the parts together: what is sent, what is stopped, which keys do what.

import { Answer, addQuestion, addToLegend } from "./chat.js";
import { Refusal, chat, keepKey, modelName } from "./client.js";
import { GraphPanel } from "./graph.js";

const get = (id) => document.getElementById(id);
const panel = new GraphPanel();
const welcome = get("welcome");
let messages = []; // of the chat, as the server takes them
let running = null; // the AbortController of the answer being written

function settings() {
  const given = {};
  for (const name of ["temperature", "top_p", "seed", "max_tokens"]) {
    const value = get(name).valueAsNumber;
    if (!Number.isNaN(value)) given[name] = value;
  }
  if (!get("drafts").checked) given.draft = "off";
  const system = get("system").value.trim();
  return { ...given, messages: system ? [{ role: "system", content: system }, ...messages] : messages };
}

async function send(text) {
  if (running || !text.trim()) return;
  const here = new AbortController();
  running = here;
  welcome.remove();
  addQuestion(get("log"), text);
  messages = [...messages, { role: "user", content: text }];
  const answer = new Answer(get("log"), get("drafts").checked, (of, index) => panel.open(of, index));
  showRunning(true);
  get("log").scrollTop = get("log").scrollHeight;
  try {
    for await (const event of chat(settings(), here.signal)) {
      const follow = isAtEnd();
      answer.take(event);
      panel.grew(answer);
      if (follow) get("log").scrollTop = get("log").scrollHeight;
    }
    answer.end();
    say("The answer is complete.");
  } catch (error) {
    answer.end(...explain(error, here.signal.aborted));
  }
  if (running !== here) return; // a new chat began
  if (answer.text) messages = [...messages, { role: "assistant", content: answer.text }];
  else messages = messages.slice(0, -1);
  running = null;
  showRunning(false);
}

function explain(error, stopped) {
  if (stopped) {
    say("Stopped.");
    return ["Stopped."];
  }
  if (error instanceof Refusal && error.status === 401) {
    askKey();
    return ["The server asks for a key. Send the message again when it has one.", true];
  }
  return [error instanceof Refusal ? `No answer: ${error.message}` : "The server cannot be reached.", true];
}

function isAtEnd() {
  const { scrollTop, scrollHeight, clientHeight } = get("log");
  return scrollHeight - scrollTop - clientHeight < 60;
}

function say(text) {
  get("status").textContent = text;
}

function showRunning(isRunning) {
  get("stop").hidden = !isRunning;
  get("send").hidden = isRunning;
  if (isRunning) say("Answering.");
}

function stop() {
  running?.abort();
  get("message").focus();
}

function newChat() {
  running?.abort();
  running = null;
  panel.close();
  messages = [];
  get("log").replaceChildren(welcome);
  showRunning(false);
  say("A new chat.");
  get("message").focus();
}

function submit() {
  const text = get("message").value;
  if (running || !text.trim()) return;
  get("message").value = "";
  send(text);
}

get("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
get("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (running) stop();
  else panel.close();
});
get("stop").addEventListener("click", stop);
get("new-chat").addEventListener("click", newChat);
get("open-settings").addEventListener("click", () => get("settings").showModal());
get("examples").addEventListener("click", (event) => {
  const example = event.target.closest("button");
  if (example) send(example.textContent);
});

function askKey() {
  if (!get("key").open) get("key").showModal();
}

async function introduce() {
  try {
    const name = await modelName();
    get("model").textContent = name;
    document.title = `${name} · DraftGraph`;
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) askKey();
    else get("model").textContent = "not reachable";
  }
}

get("key").addEventListener("close", () => {
  const key = get("key-value").value.trim();
  get("key-value").value = "";
  if (!key) return;
  keepKey(key);
  introduce();
});

["ngram", "suffix", "recycle"].forEach(addToLegend); // the usual drafters
introduce();
