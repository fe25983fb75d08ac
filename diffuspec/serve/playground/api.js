// The HTTP API: the served model, and answers as they stream.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function checked(response) {
  if (response.ok) return response;
  const text = await response.text();
  let message = `the service answered ${response.status}`;
  try {
    message = JSON.parse(text).error.message;
  } catch { /* no JSON: the status must do */ }
  throw new ApiError(response.status, message);
}

/** Return the id of the served model. */
export async function fetchModel(key) {
  const response = await checked(await fetch("v1/models", { headers: headers(key) }));
  return (await response.json()).data[0].id;
}

/** Yield the chunks of a streamed chat completion. Aborting the signal ends the request. */
export async function* streamChat(body, key, signal) {
  const response = await checked(await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers(key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  }));
  let isDone = false;
  for await (const data of events(response.body)) {
    isDone = data === "[DONE]";
    if (isDone) break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk.error.message);
    yield chunk;
  }
  if (!isDone) throw new ApiError(200, "the connection ended before the answer did");
}

/** Yield the data of server-sent events. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
      const line = buffer.slice(0, end);
      if (line.startsWith("data: ")) yield line.slice(6);
    }
  }
}
