// The server that the page came from: its OpenAI API and its statistics.

import { serverKey } from "./storage.js";

/** What went wrong, in the server's words where it has some; `status` is 0 if it did not answer. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export class Api {
  /** `askKey(again)` asks the user for the server's key and resolves to whether there is one to try. */
  constructor(askKey) {
    this.askKey = askKey;
  }

  /** The name of the model. Throws `ApiError`. */
  async model() {
    const response = await this.#send("v1/models", {});
    return (await readJson(response)).data?.[0]?.id ?? "";
  }

  /** The engine's statistics; asks nobody for a key. Throws `ApiError`. */
  async stats() {
    return readJson(await fetchFrom("stats", { signal: AbortSignal.timeout(10_000) }));
  }

  /**
   * Streams one answer: `sent()` as the request leaves, `take(chunk)` for each event. Throws `ApiError`, or as `signal` is
   * aborted.
   */
  async chat(body, { signal, sent, take }) {
    const init = {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    };
    const response = await this.#send("v1/chat/completions", init, sent);
    if (!response.ok) throw await errorOf(response);
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
      throw new ApiError("The server did not answer with a stream of events.", response.status);
    }
    for await (const data of eventsOf(response.body)) {
      if (data === "[DONE]") return;
      const chunk = parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message ?? String(chunk.error), response.status);
      take(chunk);
    }
    throw new ApiError("The connection ended before the answer was complete.");
  }

  /** A response; where a key is missing or wrong, the user is asked for it until one fits, or until they give up. */
  async #send(path, init, sent = () => {}) {
    for (let again = false; ; again = true) {
      sent();
      const response = await fetchFrom(path, init);
      if (response.status !== 401 || !(await this.askKey(again))) return response;
    }
  }
}

async function fetchFrom(path, { headers, ...init }) {
  const key = serverKey.get();
  const authorization = key ? { authorization: `Bearer ${key}` } : {};
  try {
    return await fetch(path, { headers: { ...headers, ...authorization }, ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
}

async function readJson(response) {
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

async function errorOf(response) {
  let message;
  try {
    const { error } = await response.json();
    message = error?.message ?? error;
  } catch {
    // Not in the API's form: a proxy, perhaps.
  }
  return new ApiError(
    typeof message === "string" ? message : `The server answered with status ${response.status}.`,
    response.status,
  );
}

/** The data of each server-sent event. */
async function* eventsOf(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  try {
    for (;;) {
      const { done, value } = await read(reader);
      if (done) return;
      const events = (pending + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
      pending = events.pop();
      for (const event of events) {
        const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection to the server broke off.");
  }
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent an event that is no JSON.");
  }
}
