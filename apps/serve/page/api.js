// The server. Every request goes to where the page came from.

const KEPT = "edge-token";
const BROKEN = "The answer broke off. Is edge serve still running?";
let askForToken = () => Promise.reject(new Error("no token"));

/** Says how a token is asked for: a function that promises one. */
export function tokenFrom(ask) {
  askForToken = ask;
}

/** An answer that is no success: `status`, and the server's sentence as the message. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Whether a request was given up by this page itself. */
export const givenUp = (error) => error.name === "AbortError";

async function request(method, path, body, signal) {
  for (;;) {
    const token = sessionStorage.getItem(KEPT);
    const headers = {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (token) headers.Authorization = `Bearer ${token}`;
    let answer;
    try {
      answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
    } catch (error) {
      if (givenUp(error)) throw error;
      throw new Refused(0, "The server does not answer. Is edge serve still running?");
    }
    if (answer.ok) return answer;
    if (answer.status !== 401) throw new Refused(answer.status, await sentence(answer));
    sessionStorage.setItem(KEPT, await askForToken());
  }
}

async function sentence(answer) {
  try {
    const found = await answer.json();
    return String(found.detail || found.message || found.error || answer.statusText);
  } catch {
    return `The server answered ${answer.status} ${answer.statusText}`;
  }
}

export const get = async (path, signal) => (await request("GET", path, undefined, signal)).json();
export const post = async (path, body, signal) => (await request("POST", path, body, signal)).json();

/** An answer that is no JSON: its bytes, and its headers. */
export async function postForBlob(path, body, signal) {
  const answer = await request("POST", path, body, signal);
  return { blob: await answer.blob(), headers: answer.headers };
}

export const put = async (path, body) => (await request("PUT", path, body)).json();
export const remove = async (path) => (await request("DELETE", path)).json();

/** The server-sent events of a request, as pairs of name and data. An event `error` is thrown, and so is an end before the
 * event `last`. */
export async function* events(path, body, last, signal) {
  const answer = await request("POST", path, { ...body, stream: true }, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  let ended = false;
  for (;;) {
    const { done, value } = await piece(reader);
    if (done && !ended) throw new Refused(0, BROKEN);
    if (done) return;
    waiting += value;
    const texts = waiting.split("\n\n");
    waiting = texts.pop();
    for (const text of texts) {
      const event = parsed(text);
      if (event === null) continue;
      if (event[0] === "error") throw new Refused(event[1].status || 500, event[1].detail || "The server failed");
      ended ||= event[0] === last;
      yield event;
    }
  }
}

async function piece(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (givenUp(error)) throw error;
    throw new Refused(0, BROKEN);
  }
}

function parsed(text) {
  let name = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null;
}
