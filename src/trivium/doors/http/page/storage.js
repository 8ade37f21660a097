// What the browser keeps: conversations, and the key of the server. Storage may be full, or denied altogether.

const CHAT = "trivium.chat.";
const CURRENT = "trivium.current";
const KEY = "trivium.key";

/** A storage of the window; one that forgets, where the browser denies it. */
function storageOf(name) {
  try {
    const storage = window[name];
    storage.getItem(KEY);
    return storage;
  } catch {
    const kept = new Map();
    return {
      getItem: (key) => kept.get(key) ?? null,
      setItem: (key, value) => kept.set(key, value),
      removeItem: (key) => kept.delete(key),
      key: (index) => [...kept.keys()][index] ?? null,
      get length() {
        return kept.size;
      },
    };
  }
}

const local = storageOf("localStorage");
const session = storageOf("sessionStorage");

/** Conversations, one entry each, so that saving one never touches another. */
export class Conversations {
  /** `onProblem(text)` is told when something cannot be kept, once until it works again. */
  constructor(onProblem) {
    this.onProblem = onProblem;
    this.failing = false;
  }

  /** All of them; entries that are none are left alone. */
  load() {
    const found = [];
    for (let index = 0; index < local.length; index++) {
      const name = local.key(index);
      if (!name.startsWith(CHAT)) continue;
      const conversation = parse(local.getItem(name));
      if (conversation && CHAT + conversation.id === name) found.push(conversation);
    }
    return found;
  }

  save(conversation) {
    try {
      local.setItem(CHAT + conversation.id, JSON.stringify(conversation));
      this.failing = false;
    } catch {
      if (!this.failing) {
        this.onProblem(
          "The browser's storage is full, so this conversation will not survive a reload. Delete some others.",
        );
      }
      this.failing = true;
    }
  }

  remove(id) {
    local.removeItem(CHAT + id);
  }

  /** Calls `changed(id, conversation or null)` for what another tab saves or deletes. */
  watch(changed) {
    window.addEventListener("storage", ({ key, newValue }) => {
      if (key?.startsWith(CHAT)) changed(key.slice(CHAT.length), newValue === null ? null : parse(newValue));
    });
  }
}

/** The conversation that this tab shows. */
export const current = {
  get: () => session.getItem(CURRENT),
  set: (id) => keep(session, CURRENT, id),
};

let keyInUse = session.getItem(KEY) ?? local.getItem(KEY);

/** The key that the server asks for: kept for this tab, or for the browser if the user wishes so. */
export const serverKey = {
  get: () => keyInUse,
  set(value, remember) {
    this.forget();
    keyInUse = value;
    keep(remember ? local : session, KEY, value);
  },
  forget() {
    keyInUse = null;
    session.removeItem(KEY);
    local.removeItem(KEY);
  },
};

function keep(storage, name, value) {
  try {
    storage.setItem(name, value);
  } catch {
    // A full storage costs only comfort here.
  }
}

function parse(text) {
  try {
    const value = JSON.parse(text);
    const good =
      typeof value.id === "string" &&
      typeof value.title === "string" &&
      value.settings &&
      value.messages.every(isMessage);
    return good ? value : null;
  } catch {
    return null;
  }
}

function isMessage(message) {
  return ["user", "assistant"].includes(message.role) && typeof message.content === "string";
}
