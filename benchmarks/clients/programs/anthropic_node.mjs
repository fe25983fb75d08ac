import Anthropic, { BadRequestError } from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [url, model] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: "none" });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const usual = { model, messages, max_tokens: 256 };
const schema = { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false };
const seen = {};
seen.text = Boolean((await client.messages.create(usual)).content[0].text);
let events = 0;
for await (const _ of client.messages.stream(usual)) events += 1;
seen.streams = events > 1;
const tools = [{ name: "look_up", input_schema: schema }];
const reply = await client.messages.create({ ...usual, tools, tool_choice: { type: "any" } });
seen.tools = reply.content.some((part) => part.type === "tool_use" && "city" in part.input);
let called = false;
const run = ({ city }) => { called = Boolean(city); return city; };
const lookUp = betaTool({ name: "look_up", description: "Look up a city.", inputSchema: schema, run });
const forced = { type: "any", disable_parallel_tool_use: true };
for await (const _ of client.beta.messages.toolRunner({ ...usual, tools: [lookUp], tool_choice: forced, max_iterations: 2 }));
seen.tools = seen.tools && called;
try {
  await client.messages.create({ ...usual, max_tokens: -1 });
} catch (error) {
  seen.errors = error instanceof BadRequestError;
}
console.log(JSON.stringify(seen));
