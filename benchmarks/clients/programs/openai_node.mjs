import OpenAI, { BadRequestError } from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const usual = { model, messages, temperature: 0, max_tokens: 256 };
const schema = { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false };
const ask = (extra = {}) => client.chat.completions.create({ ...usual, ...extra });
const seen = {};
seen.text = Boolean((await ask()).choices[0].message.content);
let chunks = 0;
for await (const _ of await ask({ stream: true })) chunks += 1;
seen.streams = chunks > 1;
const tools = [{ type: "function", function: { name: "look_up", parameters: schema } }];
const [call] = (await ask({ tools, tool_choice: "required" })).choices[0].message.tool_calls;
seen.tools = "city" in JSON.parse(call.function.arguments);
const form = { type: "json_schema", json_schema: { name: "answer", schema } };
seen.forms = "city" in JSON.parse((await ask({ response_format: form })).choices[0].message.content);
try {
  await ask({ temperature: 99 });
} catch (error) {
  seen.errors = error instanceof BadRequestError;
}
console.log(JSON.stringify(seen));
