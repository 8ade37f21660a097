// One answer of the model: the request, and what its events make of a message.

import { requestFields } from "./settings.js";

/** The body of the request for the next answer of a conversation, without the model's name. */
export function requestBody(conversation) {
  const { system } = conversation.settings;
  const messages = system?.trim() ? [{ role: "system", content: system }] : [];
  return {
    messages: [...messages, ...exchanged(conversation.messages)],
    stream: true,
    stream_options: { include_usage: true },
    ...requestFields(conversation.settings),
  };
}

/** What the model is told of a conversation: a question that never got an answer is not part of it, save for the last. */
function exchanged(messages) {
  return messages
    .filter(({ role, content }, at) => {
      const last = at === messages.length - 1;
      return role === "assistant" ? content : last || messages[at + 1].content;
    })
    .map(({ role, content }) => ({ role, content }));
}

export function newAnswer() {
  return { role: "assistant", content: "", reasoning: "", status: "running" };
}

/**
 * Fills `message` as the answer comes; `changed()` after each bit. Ends with the status done, stopped or failed, and never
 * throws.
 */
export async function runAnswer({ api, model, body, message, signal, changed }) {
  const clock = new Clock();
  try {
    await api.chat(
      { model: await model(), ...body },
      {
        signal,
        sent: () => clock.start(),
        take: (chunk) => {
          if (takeChunk(message, chunk)) clock.tick();
          if (chunk.usage) message.usage = usageOf(chunk.usage);
          changed();
        },
      },
    );
    message.status = "done";
  } catch (error) {
    message.status = signal.aborted ? "stopped" : "failed";
    if (!signal.aborted) message.error = error.message;
  }
  message.speed = clock.speed(message.usage?.tokens);
}

/** Whether the chunk brought text. */
function takeChunk(message, { choices = [] }) {
  const [choice] = choices;
  if (!choice) return false;
  const { content, reasoning_content: reasoning } = choice.delta ?? {};
  message.content += content ?? "";
  message.reasoning += reasoning ?? "";
  if (choice.finish_reason) message.finish = choice.finish_reason;
  return Boolean(content || reasoning);
}

function usageOf({ prompt_tokens: prompt, completion_tokens: tokens, prompt_tokens_details: details }) {
  return { prompt, tokens, cached: details?.cached_tokens ?? 0 };
}

/** Times of an answer, as they are seen here. */
class Clock {
  start() {
    this.sent = performance.now();
    this.first = this.last = null;
    this.ticks = 0;
  }

  tick() {
    this.last = performance.now();
    this.first ??= this.last;
    this.ticks++;
  }

  /** Seconds to the first text and tokens per second after it. Without a count from the server, an event counts as a token. */
  speed(tokens) {
    if (this.first == null) return null;
    const seconds = (this.last - this.first) / 1000;
    const rate = seconds > 0 ? ((tokens ?? this.ticks) - 1) / seconds : null;
    return { first: (this.first - this.sent) / 1000, rate, exact: tokens !== undefined };
  }
}
