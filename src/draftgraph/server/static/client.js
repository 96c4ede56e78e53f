// Speaks to the server. In: a request's fields. Out: the events of its stream, one object each. Knows no page.

const KEY = "draftgraph-key"; // of the session's storage, which ends with the tab

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Refusal(response.status, body?.error?.message ?? `the server answered ${response.status}`);
}

export async function modelName() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (!response.ok) throw await refusal(response);
  return (await response.json()).data[0].id;
}

export async function* chat(fields, signal) {
  const body = JSON.stringify({ ...fields, stream: true, draftgraph: { sources: true, graphs: true } });
  const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal });
  if (!response.ok) throw await refusal(response);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Refusal(500, event.error.message);
    yield event;
  }
  throw new Refusal(500, "the answer was cut off");
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const lines = text.split("\n\n");
      text = lines.pop();
      for (const line of lines) yield line.slice("data: ".length);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
